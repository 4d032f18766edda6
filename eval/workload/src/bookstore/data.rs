//! Rows of the initial database, by number.
//!
//! Each row has its own random generator, seeded by table and number, so rows can be generated in any order
//! and by any thread.

use super::row::{Address, Author, CardPayment, Country, Customer, Item, Order, OrderLine};
use super::text::{digits, name_of, string};
use super::{COUNTRIES, SUBJECTS, Scale};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// Number of kinds of book covers.
pub const BACKINGS: u8 = 5;
/// Number of kinds of credit cards.
pub const CARDS: u8 = 5;
/// Number of ways of shipping.
pub const SHIPPINGS: u8 = 6;
/// Number of states of an order; 0 is *pending*.
pub const ORDER_STATES: u8 = 4;

/// The shop's opening day, in days since 1970: 2010-04-01, on which the paper was accepted.
pub const OPENING_DAY: u32 = 14_700;
const DAY: u64 = 86_400;

/// Generator of all rows of a scale. Numbers begin at 1.
#[derive(Debug, Clone, Copy)]
pub struct Data {
    scale: Scale,
    seed: u64,
}

impl Data {
    /// Returns the generator of the rows of `scale`; another `seed` gives other rows of the same sizes.
    #[must_use]
    pub const fn new(scale: Scale, seed: u64) -> Self {
        Self { scale, seed }
    }

    /// Returns the scale.
    #[must_use]
    pub const fn scale(&self) -> Scale {
        self.scale
    }

    fn rng(&self, table: u64, number: u64) -> Xoshiro256PlusPlus {
        let spread = crate::key::scatter(self.seed ^ table.rotate_right(8));
        Xoshiro256PlusPlus::seed_from_u64(spread ^ number)
    }

    /// Returns author `number`, up to [`Scale::authors`]. The last name begins with the number in syllables,
    /// so that searches find it.
    #[must_use]
    pub fn author(&self, number: u64) -> Author {
        let rng = &mut self.rng(1, number);
        Author {
            first_name: string(rng, 3, 20),
            last_name: searchable(rng, number, 20),
            middle_name: string(rng, 1, 20),
            born: rng.random_range(0..OPENING_DAY - 20 * 365),
            bio: string(rng, 125, 500),
        }
    }

    /// Returns country `number`, up to [`COUNTRIES`].
    #[must_use]
    pub fn country(&self, number: u64) -> Country {
        let rng = &mut self.rng(2, number);
        Country {
            name: string(rng, 4, 50),
            exchange_micros: rng.random_range(1_000..200_000_000),
            currency: string(rng, 3, 18),
        }
    }

    /// Returns address `number`, up to [`Scale::addresses`].
    #[must_use]
    pub fn address(&self, number: u64) -> Address {
        address(&mut self.rng(3, number))
    }

    /// Returns customer `number`, up to [`Scale::customers`].
    #[must_use]
    pub fn customer(&self, number: u64) -> Customer {
        let rng = &mut self.rng(4, number);
        let address = rng.random_range(1..=self.scale.addresses());
        customer(rng, number, address, OPENING_DAY)
    }

    /// Returns item `number`, up to [`Scale::items`]. The title begins with the number in syllables, so that
    /// searches find it.
    #[must_use]
    pub fn item(&self, number: u64) -> Item {
        let rng = &mut self.rng(5, number);
        let authors = self.scale.authors();
        let retail_price = rng.random_range(100..=1_000_000);
        let published = rng.random_range(OPENING_DAY - 40 * 365..OPENING_DAY);
        Item {
            title: searchable(rng, number, 60),
            author: if number <= authors { number } else { rng.random_range(1..=authors) },
            published,
            publisher: string(rng, 14, 60),
            subject: rng.random_range(0..SUBJECTS),
            description: string(rng, 100, 500),
            related: distinct(rng, self.scale.items()),
            thumbnail: number * 2,
            image: number * 2 + 1,
            retail_price,
            cost: retail_price * (10 - rng.random_range(0..=5)) / 10,
            available: published + rng.random_range(1..=30),
            stock: rng.random_range(10..=30),
            isbn: digits(rng, 13, 13),
            pages: rng.random_range(20..=9_999),
            backing: rng.random_range(0..BACKINGS),
            dimensions: digits(rng, 5, 24),
        }
    }

    /// Returns order `number`, up to [`Scale::orders`], with its one to five lines (numbered from 1) and its
    /// payment.
    #[must_use]
    pub fn order(&self, number: u64) -> (Order, Vec<OrderLine>, CardPayment) {
        let rng = &mut self.rng(6, number);
        let lines: Vec<OrderLine> = (0..rng.random_range(1..=5)).map(|_| self.order_line(rng)).collect();
        let date = u64::from(OPENING_DAY) * DAY - rng.random_range(1..=60 * DAY);
        let sub_total: i64 = rng.random_range(1_000..=999_999);
        let tax = sub_total * 825 / 10_000;
        let total = sub_total + tax + 300 + 100 * i64::try_from(lines.len()).unwrap_or(5);
        let order = Order {
            customer: rng.random_range(1..=self.scale.customers()),
            date,
            sub_total,
            tax,
            total,
            ship_type: rng.random_range(0..SHIPPINGS),
            ship_date: date + rng.random_range(1..=7) * DAY,
            bill_address: rng.random_range(1..=self.scale.addresses()),
            ship_address: rng.random_range(1..=self.scale.addresses()),
            status: rng.random_range(0..ORDER_STATES),
        };
        let payment = card_payment(rng, total, date);
        (order, lines, payment)
    }

    fn order_line(&self, rng: &mut Xoshiro256PlusPlus) -> OrderLine {
        OrderLine {
            item: rng.random_range(1..=self.scale.items()),
            quantity: rng.random_range(1..=300),
            discount: rng.random_range(0..=3),
            comments: string(rng, 20, 100),
        }
    }
}

/// Returns a random name that begins with `number` in syllables.
fn searchable(rng: &mut Xoshiro256PlusPlus, number: u64, most: usize) -> String {
    let mut name = name_of(number);
    name.truncate(most - 4);
    let rest = string(rng, 2, most - name.len());
    name + &rest
}

fn distinct(rng: &mut Xoshiro256PlusPlus, of: u64) -> [u64; 5] {
    let mut chosen = [0; 5];
    for at in 0..chosen.len() {
        chosen[at] = loop {
            let item = rng.random_range(1..=of);
            if !chosen[..at].contains(&item) {
                break item;
            }
        };
    }
    chosen
}

/// Returns a random address.
pub(crate) fn address(rng: &mut Xoshiro256PlusPlus) -> Address {
    Address {
        street1: string(rng, 15, 40),
        street2: string(rng, 15, 40),
        city: string(rng, 4, 30),
        state: string(rng, 2, 20),
        zip: string(rng, 5, 10),
        country: rng.random_range(1..=COUNTRIES),
    }
}

/// Returns a random customer with this number and address; the last visit is on `day`.
pub(crate) fn customer(rng: &mut Xoshiro256PlusPlus, number: u64, address: u64, day: u32) -> Customer {
    let user_name = name_of(number);
    let since = day - rng.random_range(1..=730);
    let last_visit = (since + rng.random_range(0..=60)).min(day);
    Customer {
        password: user_name.to_lowercase(),
        user_name,
        first_name: string(rng, 8, 15),
        last_name: string(rng, 8, 15),
        address,
        phone: digits(rng, 9, 16),
        email: string(rng, 10, 50),
        since,
        last_visit,
        login: u64::from(day) * DAY,
        expiration: u64::from(day) * DAY + 7_200,
        discount: rng.random_range(0..=50),
        balance: 0,
        year_to_date: rng.random_range(0..=99_999),
        born: rng.random_range(0..OPENING_DAY - 18 * 365),
        data: string(rng, 100, 500),
    }
}

/// Returns a random card payment of `amount`.
pub(crate) fn card_payment(rng: &mut Xoshiro256PlusPlus, amount: i64, date: u64) -> CardPayment {
    CardPayment {
        card_type: rng.random_range(0..CARDS),
        number: digits(rng, 16, 16),
        name: string(rng, 14, 31),
        expiry: OPENING_DAY + rng.random_range(10..=730),
        authorisation: string(rng, 15, 16),
        amount,
        date,
        country: rng.random_range(1..=COUNTRIES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_depend_on_scale_seed_and_number_only() {
        let data = Data::new(Scale::new(1_000, 1), 7);
        assert_eq!(data.item(17), Data::new(Scale::new(1_000, 1), 7).item(17));
        assert_ne!(data.item(17).title, data.item(18).title);
        assert_ne!(data.item(17), Data::new(Scale::new(1_000, 1), 8).item(17));
    }

    #[test]
    fn rows_keep_to_the_kits_bounds() {
        let scale = Scale::new(1_000, 1);
        let data = Data::new(scale, 1);
        for number in 1..=scale.items() {
            let item = data.item(number);
            assert!(item.title.starts_with(&name_of(number)) && item.title.len() <= 60);
            assert!(item.author >= 1 && item.author <= scale.authors());
            assert!(number > scale.authors() || item.author == number);
            assert!(item.cost <= item.retail_price && item.cost * 2 + 1 >= item.retail_price);
            assert!((10..=30).contains(&item.stock) && item.description.len() < 500);
            let mut related = item.related.to_vec();
            related.sort_unstable();
            related.dedup();
            assert_eq!(related.len(), 5);
        }
        for number in 1..=scale.authors() {
            assert!(data.author(number).last_name.len() <= 20);
        }
        for number in 1..=500 {
            let (order, lines, payment) = data.order(number);
            assert!((1..=5).contains(&lines.len()) && payment.amount == order.total);
            assert!(order.customer <= scale.customers());
            assert_eq!(data.customer(number).user_name, name_of(number));
        }
    }
}
