//! One thread's endless, repeatable list of inputs, and the mixes of transactions.
//!
//! A terminal of the specification has one warehouse, and for Stock-Level one district, and it mostly waits.
//! Here a thread does not wait, and represents all terminals of its warehouses. If there are at least as many
//! threads as warehouses, a thread has one warehouse. Otherwise it has its share of them. For each
//! transaction it draws one of its warehouses and one of that warehouse's districts.

use super::input::{
    CustomerBy, Delivery, Input, Kind, NewOrder, OrderStatus, OrderedItem, Payment, StockLevel,
};
use super::name::last_name;
use super::random::{Constants, Random};
use super::scale::{DISTRICTS, Scale};
use crate::stream::Lane;

/// A mix of transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// All five transactions: 45, 43, 4, 4 and 4 percent.
    Full,
    /// Only New-Order, never rolled back, as in the P-WAL paper (§5.2.2).
    NewOrder,
}

impl Mix {
    /// Returns the name: `full` or `new-order`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::NewOrder => "new-order",
        }
    }

    /// Returns the kind of transaction for a number from 1 to 100.
    #[must_use]
    pub const fn kind(self, number: u32) -> Kind {
        match (self, number) {
            (Self::NewOrder, _) | (Self::Full, ..=45) => Kind::NewOrder,
            (Self::Full, ..=88) => Kind::Payment,
            (Self::Full, ..=92) => Kind::OrderStatus,
            (Self::Full, ..=96) => Kind::Delivery,
            (Self::Full, _) => Kind::StockLevel,
        }
    }
}

/// A seeded source of inputs.
#[derive(Debug)]
pub struct Terminal {
    scale: Scale,
    constants: Constants,
    mix: Mix,
    random: Random,
    /// First and last number of the terminal's warehouses.
    homes: (u32, u32),
}

impl Terminal {
    /// Returns the terminal of a lane. Equal arguments give equal lists of inputs.
    #[must_use]
    pub fn new(scale: Scale, constants: Constants, mix: Mix, lane: Lane, seed: u64) -> Self {
        // This stream number is above all those of the loader.
        let random = Random::new(seed, 1 << 63 | lane.index());
        Self { scale, constants, mix, random, homes: homes(scale.warehouses(), lane) }
    }

    /// Returns the next input, with the time `now` (milliseconds since 1970).
    pub fn next(&mut self, now: u64) -> Input {
        let w_id = self.random.within(self.homes.0, self.homes.1);
        match self.mix.kind(self.random.within(1, 100)) {
            Kind::NewOrder => Input::NewOrder(self.new_order(w_id, now)),
            Kind::Payment => Input::Payment(self.payment(w_id, now)),
            Kind::OrderStatus => {
                Input::OrderStatus(OrderStatus { w_id, d_id: self.district(), customer: self.customer() })
            }
            Kind::Delivery => {
                Input::Delivery(Delivery { w_id, carrier_id: self.small(1, 10), delivery_d: now })
            }
            Kind::StockLevel => Input::StockLevel(StockLevel {
                w_id,
                d_id: self.district(),
                threshold: self.small(10, 20).into(),
            }),
        }
    }

    fn new_order(&mut self, w_id: u32, entry_d: u64) -> NewOrder {
        let (d_id, c_id, count) = (self.district(), self.customer_id(), self.small(5, 15));
        let is_unused = self.mix == Mix::Full && self.random.percent(1);
        let mut lines: Vec<OrderedItem> = (0..count).map(|_| self.line(w_id)).collect();
        if let (true, Some(last)) = (is_unused, lines.last_mut()) {
            last.i_id = self.scale.items() + 1;
        }
        NewOrder { w_id, d_id, c_id, lines, entry_d }
    }

    fn line(&mut self, w_id: u32) -> OrderedItem {
        let items = self.scale.items();
        let i_id = self.random.non_uniform(Constants::ITEM_A, self.constants.item, 1, items);
        let supply_w_id = if self.random.percent(1) { self.other_warehouse(w_id) } else { w_id };
        OrderedItem { i_id, supply_w_id, quantity: self.small(1, 10) }
    }

    fn payment(&mut self, w_id: u32, date: u64) -> Payment {
        let d_id = self.district();
        let (c_w_id, c_d_id) = match self.random.percent(15) {
            true => (self.other_warehouse(w_id), self.district()),
            false => (w_id, d_id),
        };
        let amount = self.random.within(100, 500_000).into();
        Payment { w_id, d_id, c_w_id, c_d_id, customer: self.customer(), amount, date }
    }

    /// Draws another warehouse, or returns this one if it is the only one.
    fn other_warehouse(&mut self, w_id: u32) -> u32 {
        let warehouses = self.scale.warehouses();
        if warehouses == 1 {
            return w_id;
        }
        let other = self.random.within(1, warehouses - 1);
        if other < w_id { other } else { other + 1 }
    }

    fn district(&mut self) -> u8 {
        self.small(1, DISTRICTS)
    }

    /// Draws a customer: by last name with a probability of 60 %, otherwise by number.
    fn customer(&mut self) -> CustomerBy {
        if !self.random.percent(60) {
            return CustomerBy::Id(self.customer_id());
        }
        let last = self.scale.names() - 1;
        CustomerBy::LastName(last_name(self.random.non_uniform(
            Constants::LAST_A,
            self.constants.run_last,
            0,
            last,
        )))
    }

    fn customer_id(&mut self) -> u32 {
        let customers = self.scale.customers();
        self.random.non_uniform(Constants::CUSTOMER_A, self.constants.customer, 1, customers)
    }

    fn small(&mut self, low: u8, high: u8) -> u8 {
        u8::try_from(self.random.within(low.into(), high.into())).unwrap_or(low)
    }
}

/// Returns the first and the last warehouse of a lane.
fn homes(warehouses: u32, lane: Lane) -> (u32, u32) {
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    if lane.of() >= u64::from(warehouses) {
        let home = narrow(lane.index() % u64::from(warehouses)) + 1;
        return (home, home);
    }
    let share = lane.share(warehouses.into());
    (narrow(share.start) + 1, narrow(share.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const DRAWS: usize = 100_000;

    fn inputs(scale: Scale, mix: Mix) -> Vec<Input> {
        let mut terminal = Terminal::new(scale, Constants::draw(3), mix, Lane::only(), 11);
        (0..DRAWS).map(|_| terminal.next(5)).collect()
    }

    /// Asserts a percentage within six standard deviations; the seed is fixed, so the result is always the
    /// same.
    fn assert_share(count: usize, of: usize, percent: f64, what: &str) {
        let (n, p) = (of as f64, percent / 100.0);
        let slack = 6.0 * (n * p * (1.0 - p)).sqrt();
        assert!((count as f64 - n * p).abs() < slack, "{what}: {count} of {of}, expected {percent} %");
    }

    #[test]
    fn the_mix_has_the_shares_of_the_specification() {
        let mut counts = HashMap::new();
        for input in inputs(Scale::full(4), Mix::Full) {
            *counts.entry(input.kind()).or_insert(0) += 1;
        }
        for (kind, percent) in Kind::ALL.into_iter().zip([45.0, 43.0, 4.0, 4.0, 4.0]) {
            assert_share(counts[&kind], DRAWS, percent, kind.word());
        }
        let exact = |kind| (1..=100).filter(|&n| Mix::Full.kind(n) == kind).count();
        assert_eq!(Kind::ALL.map(exact), [45, 43, 4, 4, 4]);
    }

    #[test]
    fn orders_are_as_large_as_remote_and_as_often_rolled_back_as_the_specification_says() {
        let scale = Scale::full(4);
        let orders: Vec<NewOrder> = inputs(scale, Mix::Full)
            .into_iter()
            .filter_map(|input| if let Input::NewOrder(order) = input { Some(order) } else { None })
            .collect();
        let unused = |order: &&NewOrder| order.lines.last().is_some_and(|line| line.i_id > scale.items());
        assert_share(orders.iter().filter(unused).count(), orders.len(), 1.0, "rolled back");
        let lines: Vec<(u32, OrderedItem)> =
            orders.iter().flat_map(|order| order.lines.iter().map(|line| (order.w_id, *line))).collect();
        let remote = lines.iter().filter(|(w, line)| line.supply_w_id != *w).count();
        assert_share(remote, lines.len(), 1.0, "remote lines");
        assert!(orders.iter().all(|order| (5..=15).contains(&order.lines.len())));
        assert!(lines.iter().all(|(_, line)| (1..=4).contains(&line.supply_w_id)));
        assert!(lines.iter().all(|(_, line)| (1..=10).contains(&line.quantity)));
        let mean = lines.len() as f64 / orders.len() as f64;
        assert!((mean - 10.0).abs() < 0.1, "{mean} lines an order");
    }

    #[test]
    fn payments_are_as_remote_and_customers_as_often_named_as_the_specification_says() {
        let payments: Vec<Payment> = inputs(Scale::full(4), Mix::Full)
            .into_iter()
            .filter_map(|input| if let Input::Payment(payment) = input { Some(payment) } else { None })
            .collect();
        let remote = payments.iter().filter(|payment| payment.c_w_id != payment.w_id).count();
        assert_share(remote, payments.len(), 15.0, "remote payments");
        assert!(payments.iter().all(|p| p.c_w_id != p.w_id || p.c_d_id == p.d_id));
        let named = payments.iter().filter(|p| matches!(p.customer, CustomerBy::LastName(_))).count();
        assert_share(named, payments.len(), 60.0, "by last name");
        assert!(payments.iter().all(|p| (100..=500_000).contains(&p.amount)));
    }

    #[test]
    fn the_papers_variant_orders_and_never_rolls_back() {
        let scale = Scale::reduced(1, 100);
        for input in inputs(scale, Mix::NewOrder) {
            let Input::NewOrder(order) = input else { panic!("{input:?}") };
            assert!(order.lines.iter().all(|line| line.i_id <= scale.items() && line.supply_w_id == 1));
        }
    }

    #[test]
    fn lanes_have_warehouses_of_their_own_or_share_them_evenly() {
        let of = |warehouses, lanes| {
            (0..lanes).map(|i| homes(warehouses, Lane::new(i, lanes))).collect::<Vec<_>>()
        };
        assert_eq!(of(10, 3), [(1, 3), (4, 6), (7, 10)]);
        assert_eq!(of(2, 5), [(1, 1), (2, 2), (1, 1), (2, 2), (1, 1)]);
        assert_eq!(of(4, 4), [(1, 1), (2, 2), (3, 3), (4, 4)]);
    }

    #[test]
    fn the_same_seed_gives_the_same_inputs_and_another_lane_does_not() {
        let list = |lane, seed| {
            let mut terminal = Terminal::new(Scale::full(2), Constants::draw(1), Mix::Full, lane, seed);
            (0..50).map(|_| terminal.next(0)).collect::<Vec<_>>()
        };
        assert_eq!(list(Lane::new(0, 2), 1), list(Lane::new(0, 2), 1));
        assert_ne!(list(Lane::new(0, 3), 1), list(Lane::new(2, 3), 1));
        assert_ne!(list(Lane::only(), 1), list(Lane::only(), 2));
    }
}
