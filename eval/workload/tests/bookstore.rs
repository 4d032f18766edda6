//! Tests of the bookstore's users: the mix after a million pages, their state, and the repeatability of a
//! seed.

use azekura_workload::bookstore::request::Buyer;
use azekura_workload::bookstore::user::Pretend;
use azekura_workload::bookstore::{
    Answer, Conformance, Data, Interaction, Mix, Request, Scale, Think, Transitions, User,
};
use std::time::Duration;

const SCALE: Scale = Scale::new(1_000, 1);
const MIXES: [Mix; 3] = [Mix::Shopping, Mix::Browsing, Mix::Ordering];

/// Calls `each` with the requests of a user without pauses. The time advances by a second for each page, so
/// that visits end.
fn walk(mut user: User, pages: u64, mut each: impl FnMut(&Request)) {
    let mut shop = Pretend::new(&Data::new(SCALE, 1));
    for page in 0..pages {
        let request = user.next(Duration::from_secs(page));
        each(&request);
        user.answered(&shop.answer(&request));
    }
}

fn farthest_from_stationary(transitions: Transitions, conformance: Conformance) -> (f64, Interaction) {
    const PAGES: u64 = 1_000_000;
    let mut counts = [0u64; 14];
    let user = User::walking(SCALE, transitions, conformance, 20_260_420);
    walk(user, PAGES, |request| counts[request.interaction().index()] += 1);
    let stationary = transitions.stationary();
    let distances = Interaction::ALL.map(|page| {
        let part = counts[page.index()] as f64 / PAGES as f64;
        ((part - stationary[page.index()]).abs() * 100.0, page)
    });
    distances.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are pages")
}

#[test]
fn after_a_million_pages_the_mix_is_within_three_tenths_of_a_point_of_the_table() {
    for mix in MIXES {
        for conformance in [Conformance::Kit, Conformance::TpcW] {
            let (distance, page) = farthest_from_stationary(Transitions::of(mix), conformance);
            assert!(distance < 0.3, "{mix:?}, {conformance:?}: {} off by {distance:.3} points", page.name());
        }
    }
}

#[test]
fn the_kits_misprint_is_seen_in_the_mix() {
    let (distance, page) =
        farthest_from_stationary(Transitions::with_misprint(Mix::Ordering), Conformance::Kit);
    assert!(distance < 0.3, "{} off by {distance:.3} points", page.name());
    let right = Transitions::of(Mix::Ordering).stationary();
    let wrong = Transitions::with_misprint(Mix::Ordering).stationary();
    assert!((right[4] - wrong[4]).abs() > 0.01, "the test above could not tell them apart");
}

#[test]
fn the_same_seed_takes_the_same_walk_and_another_another() {
    let walked = |seed| {
        let mut requests = Vec::new();
        walk(User::new(SCALE, Mix::Ordering, Conformance::TpcW, seed), 2_000, |r| requests.push(r.clone()));
        requests
    };
    assert_eq!(walked(3), walked(3));
    assert_ne!(walked(3), walked(4));
}

#[test]
fn a_buyer_has_a_cart_and_is_a_customer() {
    for mix in MIXES {
        let (mut purchases, mut registrations) = (0, 0);
        walk(User::new(SCALE, mix, Conformance::Kit, 9), 200_000, |request| match request {
            Request::BuyRequest { cart, buyer } => {
                assert!(cart.is_some());
                registrations += u32::from(matches!(buyer, Buyer::New(_)));
            }
            Request::BuyConfirm { cart, customer, .. } => {
                assert!(cart.is_some() && customer.is_some());
                purchases += 1;
            }
            _ => {}
        });
        assert!(purchases > 500 && registrations > 0, "{mix:?}: {purchases}, {registrations}");
    }
}

#[test]
fn a_cart_is_forgotten_when_it_was_bought() {
    let mut user = User::new(SCALE, Mix::Ordering, Conformance::Kit, 1);
    let mut bought = None;
    let mut next_cart = 1;
    for page in 0..10_000 {
        let request = user.next(Duration::from_millis(page));
        let mut answer = Answer::default();
        match request {
            Request::ShoppingCart { cart: None, .. } => {
                answer.cart = Some(next_cart);
                next_cart += 1;
            }
            Request::ShoppingCart { cart, .. } => assert_ne!(cart, bought),
            Request::BuyRequest { buyer: Buyer::New(_), .. } => answer.customer = Some(77),
            Request::BuyConfirm { cart, .. } => bought = cart,
            _ => {}
        }
        user.answered(&answer);
    }
    assert!(bought.is_some());
}

#[test]
fn only_tpc_w_refreshes_carts_counts_sales_and_promotes_on_every_page() {
    for (conformance, is_exact) in [(Conformance::Kit, false), (Conformance::TpcW, true)] {
        let mut refreshed = false;
        walk(User::new(SCALE, Mix::Shopping, conformance, 2), 50_000, |request| match request {
            Request::BestSellers { by_sales, .. } => assert_eq!(*by_sales, is_exact),
            Request::SearchRequest { promotion } => assert_eq!(promotion.is_some(), is_exact),
            Request::ShoppingCart { refresh, .. } => refreshed |= !refresh.is_empty(),
            _ => {}
        });
        assert_eq!(refreshed, is_exact);
    }
}

#[test]
fn a_visit_ends_at_home_and_the_next_visitor_has_no_cart() {
    let mut user = User::new(SCALE, Mix::Ordering, Conformance::Kit, 4);
    let mut visitors = std::collections::BTreeSet::new();
    let mut now = Duration::ZERO;
    for _ in 0..20_000 {
        if let Request::Home { customer, .. } = user.next(now) {
            visitors.insert(customer);
        }
        user.answered(&Answer::default());
        now += user.think(Think::Exponential(Duration::from_secs(7)));
    }
    // 20,000 pages of seven seconds are about 39 hours, which is about 150 visits of a quarter of an hour.
    assert!((60..400).contains(&visitors.len()), "{} visitors", visitors.len());
}
