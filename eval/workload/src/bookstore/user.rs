//! One emulated user: the sequence of its requests, and its state between them.

use super::data::{SHIPPINGS, address, card_payment, customer};
use super::request::{Answer, Buyer, Request, Search};
use super::text::{name_of, nu_rand, nu_rand_a};
use super::think::exponential;
use super::{CART_SHOWN, Conformance, Data, Interaction, Mix, SUBJECTS, Scale, Transitions};
use crate::bookstore::data::OPENING_DAY;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// Mean and upper bound of the minimum length of a visit.
const VISIT: (Duration, Duration) = (Duration::from_mins(15), Duration::from_mins(60));

/// An emulated user. When a visit ends, a visit of a new visitor begins.
///
/// A visit begins at the home page. It ends when the home page is drawn again after the minimum length of the
/// visit; that page is the first one of the next visit. The pages are thus one walk through the transition
/// table of the mix.
/// transitions.
#[derive(Debug)]
pub struct User {
    scale: Scale,
    transitions: Transitions,
    conformance: Conformance,
    rng: Xoshiro256PlusPlus,
    last: Option<Interaction>,
    /// The earliest end of the visit.
    visit_until: Duration,
    customer: Option<u64>,
    cart: Option<u64>,
    /// Books in the last shown list.
    shown: Vec<u64>,
    /// The last viewed book.
    item: u64,
}

impl User {
    /// Returns a user with random numbers from `seed`.
    #[must_use]
    pub fn new(scale: Scale, mix: Mix, conformance: Conformance, seed: u64) -> Self {
        Self::walking(scale, Transitions::of(mix), conformance, seed)
    }

    /// Returns a user with another transition table.
    #[must_use]
    pub fn walking(scale: Scale, transitions: Transitions, conformance: Conformance, seed: u64) -> Self {
        Self {
            scale,
            transitions,
            conformance,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            last: None,
            visit_until: Duration::ZERO,
            customer: None,
            cart: None,
            shown: Vec::new(),
            item: 1,
        }
    }

    /// Returns the next request. `now` is the time of a clock that all calls share.
    pub fn next(&mut self, now: Duration) -> Request {
        let next = match self.last {
            None => Interaction::Home,
            Some(last) => self.transitions.next(last, self.rng.random_range(0..super::mix::DRAWS)),
        };
        if self.last.is_none() || next == Interaction::Home && now >= self.visit_until {
            self.arrive(now);
        }
        let request = self.request(next);
        self.last = Some(next);
        request
    }

    /// Updates the user's state with the answer to the last request.
    pub fn answered(&mut self, answer: &Answer) {
        if answer.customer.is_some() {
            self.customer = answer.customer;
        }
        if answer.cart.is_some() {
            self.cart = answer.cart;
        }
        if self.last == Some(Interaction::BuyConfirm) {
            self.cart = None;
        }
        if !answer.shown.is_empty() {
            self.shown.clone_from(&answer.shown);
        }
    }

    /// Draws a think time with the random numbers of this user.
    pub fn think(&mut self, think: super::Think) -> Duration {
        think.draw(&mut self.rng)
    }

    /// Begins a visit of a new visitor; four of five are known customers.
    fn arrive(&mut self, now: Duration) {
        self.visit_until = now + exponential(&mut self.rng, VISIT.0).min(VISIT.1);
        self.customer = self.rng.random_bool(0.8).then(|| self.any_customer());
        self.cart = None;
        self.shown.clear();
    }

    fn any_customer(&mut self) -> u64 {
        let customers = self.scale.customers();
        nu_rand(&mut self.rng, nu_rand_a(customers), 1, customers)
    }

    fn any_item(&mut self) -> u64 {
        self.rng.random_range(1..=self.scale.items())
    }

    fn any_subject(&mut self) -> u8 {
        self.rng.random_range(0..SUBJECTS)
    }

    fn is_exact(&self) -> bool {
        self.conformance == Conformance::TpcW
    }

    fn request(&mut self, page: Interaction) -> Request {
        match page {
            Interaction::Home => Request::Home { customer: self.customer, promotion: self.any_item() },
            Interaction::NewProducts => {
                Request::NewProducts { subject: self.any_subject(), promotion: self.any_item() }
            }
            Interaction::BestSellers => Request::BestSellers {
                subject: self.any_subject(),
                promotion: self.any_item(),
                by_sales: self.is_exact(),
            },
            Interaction::ProductDetail => {
                self.item = self.clicked();
                Request::ProductDetail { item: self.item }
            }
            Interaction::SearchRequest => {
                Request::SearchRequest { promotion: self.is_exact().then(|| self.any_item()) }
            }
            Interaction::SearchResults => Request::SearchResults { search: self.search() },
            Interaction::ShoppingCart => self.shopping_cart(),
            Interaction::CustomerRegistration => {
                Request::CustomerRegistration { customer: self.customer.filter(|_| self.is_exact()) }
            }
            Interaction::BuyRequest => Request::BuyRequest { cart: self.cart, buyer: self.buyer() },
            Interaction::BuyConfirm => self.buy_confirm(),
            Interaction::OrderInquiry => Request::OrderInquiry { customer: self.customer_or_any() },
            Interaction::OrderDisplay => Request::OrderDisplay { customer: self.customer_or_any() },
            Interaction::AdminRequest => Request::AdminRequest { item: self.item },
            Interaction::AdminConfirm => Request::AdminConfirm {
                item: self.item,
                cost: self.rng.random_range(100..=1_000_000),
                image: self.rng.random(),
                published: OPENING_DAY,
            },
        }
    }

    /// Returns a random book of the last list, or of all books if the list is empty.
    fn clicked(&mut self) -> u64 {
        match self.shown.len() {
            0 => self.any_item(),
            n => self.shown[self.rng.random_range(0..n)],
        }
    }

    fn customer_or_any(&mut self) -> u64 {
        match self.customer {
            Some(customer) => customer,
            None => self.any_customer(),
        }
    }

    fn search(&mut self) -> Search {
        let mut skewed = |of: u64| name_of(nu_rand(&mut self.rng, nu_rand_a(of), 1, of));
        match (skewed(self.scale.authors()), skewed(self.scale.items()), self.rng.random_range(0..3)) {
            (author, _, 0) => Search::Author(author),
            (_, title, 1) => Search::Title(title),
            _ => Search::Subject(self.any_subject()),
        }
    }

    fn shopping_cart(&mut self) -> Request {
        let from_book = self.last == Some(Interaction::ProductDetail);
        let refreshes = self.is_exact() && !from_book && self.cart.is_some();
        let refresh = match refreshes {
            true => (0..CART_SHOWN).map(|_| self.rng.random_range(0..=10)).collect(),
            false => Vec::new(),
        };
        Request::ShoppingCart {
            cart: self.cart,
            add: from_book.then_some(self.item),
            instead: self.any_item(),
            refresh,
            promotion: self.any_item(),
        }
    }

    fn buyer(&mut self) -> Buyer {
        match self.customer {
            Some(customer) => Buyer::Known(customer),
            // The shop assigns number and address; 0 is a placeholder for both.
            None => {
                Buyer::New(Box::new((customer(&mut self.rng, 0, 0, OPENING_DAY), address(&mut self.rng))))
            }
        }
    }

    fn buy_confirm(&mut self) -> Request {
        Request::BuyConfirm {
            cart: self.cart,
            customer: self.customer,
            ship_to: self.rng.random_bool(0.05).then(|| address(&mut self.rng)),
            ship_type: self.rng.random_range(0..SHIPPINGS),
            ship_days: self.rng.random_range(1..=7),
            payment: Box::new(card_payment(&mut self.rng, 0, 0)),
            comment: super::text::string(&mut self.rng, 20, 100),
        }
    }
}

/// Simulated answers of a shop, for a walk of a user without a store: lists of arbitrary books, and numbers
/// in order.
#[derive(Debug)]
pub struct Pretend {
    items: u64,
    carts: u64,
    customers: u64,
}

impl Pretend {
    /// Returns a shop in which the numbers of `data` are used.
    #[must_use]
    pub fn new(data: &Data) -> Self {
        let scale = data.scale();
        Self { items: scale.items(), carts: scale.orders(), customers: scale.customers() }
    }

    /// Returns an answer to `request`.
    pub fn answer(&mut self, request: &Request) -> Answer {
        let mut answer = Answer::default();
        match request {
            Request::ShoppingCart { cart: None, .. } => {
                self.carts += 1;
                answer.cart = Some(self.carts);
            }
            Request::BuyRequest { buyer: Buyer::New(_), .. } => {
                self.customers += 1;
                answer.customer = Some(self.customers);
            }
            Request::NewProducts { subject, .. } | Request::BestSellers { subject, .. } => {
                answer.shown = vec![1 + u64::from(*subject) % self.items];
            }
            _ => {}
        }
        answer
    }
}
