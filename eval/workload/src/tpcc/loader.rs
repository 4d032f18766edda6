//! The initial population (clause 4.3.3.1), row by row. The same seed gives the same rows, in any order of
//! the calls.

use super::name::last_name;
use super::random::{Constants, Random};
use super::row::{Address, Customer, DIST_INFO, District, History, Item, Order, OrderLine, Stock, Warehouse};
use super::scale::{DISTRICTS, Scale};

/// Amount of each customer's initial payment, in cents.
const FIRST_PAYMENT: i64 = 1_000;

/// Generates the rows of a database.
#[derive(Debug, Clone, Copy)]
pub struct Loader {
    scale: Scale,
    constants: Constants,
    seed: u64,
    now: u64,
}

/// Tables with their own random numbers.
#[derive(Debug, Clone, Copy)]
enum Source {
    Item,
    Warehouse,
    Stock,
    District,
    Customer,
    History,
    Order,
}

impl Loader {
    /// Returns the generator of the rows for a seed, with the date `now` (milliseconds since 1970).
    #[must_use]
    pub const fn new(scale: Scale, constants: Constants, seed: u64, now: u64) -> Self {
        Self { scale, constants, seed, now }
    }

    /// Returns all items, in the order of their numbers.
    pub fn items(&self) -> impl Iterator<Item = (u32, Item)> + use<> {
        let mut random = self.random(Source::Item, 0, 0);
        (1..=self.scale.items()).map(move |i| {
            let item = Item {
                im_id: random.within(1, 10_000),
                name: random.text(14, 24),
                price: random.within(100, 10_000).into(),
                data: random.data(),
            };
            (i, item)
        })
    }

    /// Returns a warehouse.
    #[must_use]
    pub fn warehouse(&self, w: u32) -> Warehouse {
        let mut random = self.random(Source::Warehouse, w, 0);
        Warehouse {
            name: random.text(6, 10),
            address: address(&mut random),
            tax: rate(&mut random, 2_000),
            ytd: FIRST_PAYMENT * i64::from(self.scale.customers()) * i64::from(DISTRICTS),
        }
    }

    /// Returns the stocks of a warehouse, in the order of their items.
    pub fn stocks(&self, w: u32) -> impl Iterator<Item = (u32, Stock)> + use<> {
        let mut random = self.random(Source::Stock, w, 0);
        let letters = u32::try_from(DIST_INFO).unwrap_or(0) * u32::from(DISTRICTS);
        (1..=self.scale.items()).map(move |i| {
            let stock = Stock {
                quantity: i32::try_from(random.within(10, 100)).unwrap_or(10),
                dists: random.text(letters, letters),
                ytd: 0,
                order_cnt: 0,
                remote_cnt: 0,
                data: random.data(),
            };
            (i, stock)
        })
    }

    /// Returns a district.
    #[must_use]
    pub fn district(&self, w: u32, d: u8) -> District {
        let mut random = self.random(Source::District, w, d);
        District {
            name: random.text(6, 10),
            address: address(&mut random),
            tax: rate(&mut random, 2_000),
            ytd: FIRST_PAYMENT * i64::from(self.scale.customers()),
            next_o_id: self.scale.orders() + 1,
        }
    }

    /// Returns the customers of a district, in the order of their numbers.
    pub fn customers(&self, w: u32, d: u8) -> impl Iterator<Item = (u32, Customer)> + use<> {
        let mut random = self.random(Source::Customer, w, d);
        let this = *self;
        (1..=self.scale.customers()).map(move |c| (c, this.customer(c, &mut random)))
    }

    fn customer(&self, c: u32, random: &mut Random) -> Customer {
        let names = self.scale.names();
        let name = if c <= names {
            c - 1
        } else {
            random.non_uniform(Constants::LAST_A, self.constants.load_last, 0, names - 1)
        };
        Customer {
            first: random.text(8, 16),
            middle: "OE".into(),
            last: last_name(name),
            address: address(random),
            phone: random.digits(16, 16),
            since: self.now,
            bad_credit: random.percent(10),
            credit_limit: 5_000_000,
            discount: rate(random, 5_000),
            balance: -FIRST_PAYMENT,
            ytd_payment: FIRST_PAYMENT,
            payment_cnt: 1,
            delivery_cnt: 0,
            data: random.text(300, 500),
        }
    }

    /// Returns the initial payment of each customer of a district, in the order of the customers' numbers.
    pub fn histories(&self, w: u32, d: u8) -> impl Iterator<Item = (u32, History)> + use<> {
        let mut random = self.random(Source::History, w, d);
        let date = self.now;
        (1..=self.scale.customers()).map(move |c| {
            (c, History { w_id: w, d_id: d, date, amount: FIRST_PAYMENT, data: random.text(12, 24) })
        })
    }

    /// Returns the orders of a district with their lines, in the order of their numbers. Undelivered orders
    /// ([`Order::carrier_id`] is `None`) have a row in NEW-ORDER.
    pub fn orders(&self, w: u32, d: u8) -> impl Iterator<Item = (u32, Order, Vec<OrderLine>)> + use<> {
        let mut random = self.random(Source::Order, w, d);
        let customers = random.permutation(self.scale.customers());
        let this = *self;
        (1..).zip(customers).map(move |(o, c_id)| this.order(w, o, c_id, &mut random))
    }

    fn order(&self, w: u32, o: u32, c_id: u32, random: &mut Random) -> (u32, Order, Vec<OrderLine>) {
        let is_delivered = o <= self.scale.orders() - self.scale.undelivered();
        let order = Order {
            c_id,
            entry_d: self.now,
            carrier_id: is_delivered.then(|| small(random, 1, 10)),
            ol_cnt: small(random, 5, 15),
            all_local: true,
        };
        let letters = u32::try_from(DIST_INFO).unwrap_or(0);
        let line = |_| OrderLine {
            i_id: random.within(1, self.scale.items()),
            supply_w_id: w,
            delivery_d: is_delivered.then_some(self.now),
            quantity: 5,
            amount: if is_delivered { 0 } else { random.within(1, 999_999).into() },
            dist_info: random.text(letters, letters),
        };
        let lines = (0..order.ol_cnt).map(line).collect();
        (o, order, lines)
    }

    fn random(&self, source: Source, w: u32, d: u8) -> Random {
        Random::new(self.seed, (source as u64) << 48 | u64::from(w) << 8 | u64::from(d))
    }
}

/// Draws a number that fits in a byte.
fn small(random: &mut Random, low: u8, high: u8) -> u8 {
    u8::try_from(random.within(low.into(), high.into())).unwrap_or(low)
}

/// Draws a rate in hundredths of a percent, up to `most`.
fn rate(random: &mut Random, most: u16) -> u16 {
    u16::try_from(random.within(0, most.into())).unwrap_or(most)
}

fn address(random: &mut Random) -> Address {
    Address {
        street_1: random.text(10, 20),
        street_2: random.text(10, 20),
        city: random.text(10, 20),
        state: random.state(),
        zip: random.zip(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn loader(divisor: u32) -> Loader {
        Loader::new(Scale::reduced(2, divisor), Constants::draw(7), 7, 1_000)
    }

    #[test]
    fn a_full_scale_district_has_the_rows_of_the_specification() {
        let loader = loader(1);
        assert_eq!(loader.customers(1, 1).count(), 3_000);
        assert_eq!(loader.histories(1, 1).count(), 3_000);
        let orders: Vec<_> = loader.orders(1, 1).collect();
        assert_eq!(orders.len(), 3_000);
        assert_eq!(orders.iter().map(|(_, order, _)| order.c_id).collect::<HashSet<_>>().len(), 3_000);
        let open: Vec<u32> =
            orders.iter().filter(|(_, order, _)| order.carrier_id.is_none()).map(|(o, ..)| *o).collect();
        assert_eq!(open, (2_101..=3_000).collect::<Vec<_>>());
        for (o, order, lines) in &orders {
            assert_eq!(lines.len(), usize::from(order.ol_cnt), "order {o}");
            assert!((5..=15).contains(&order.ol_cnt));
            for line in lines {
                assert_eq!(line.delivery_d.is_some(), order.carrier_id.is_some(), "order {o}");
                assert_eq!(line.amount == 0, order.carrier_id.is_some(), "order {o}");
            }
        }
        assert_eq!(loader.district(1, 1).next_o_id, 3_001);
        assert_eq!((loader.warehouse(1).ytd, loader.district(1, 1).ytd), (30_000_000, 3_000_000));
        assert_eq!((loader.items().count(), loader.stocks(2).count()), (100_000, 100_000));
    }

    #[test]
    fn the_first_thousand_customers_of_a_district_have_the_thousand_names() {
        let names: Vec<String> = loader(1).customers(2, 10).map(|(_, customer)| customer.last).collect();
        assert!((0..1_000).all(|n| names[n as usize] == last_name(n)));
        let later: HashSet<&String> = names[1_000..].iter().collect();
        assert!(later.len() > 300 && later.len() < 1_000, "{} names among the other 2,000", later.len());
    }

    #[test]
    fn about_a_tenth_of_the_customers_have_bad_credit() {
        let bad = loader(1).customers(1, 3).filter(|(_, customer)| customer.bad_credit).count();
        assert!((210..390).contains(&bad), "{bad} of 3,000");
    }

    #[test]
    fn rows_depend_on_seed_and_place_and_on_nothing_else() {
        let loader = loader(100);
        let rows = |w, d| loader.customers(w, d).collect::<Vec<_>>();
        assert_eq!(rows(1, 1), rows(1, 1));
        assert_ne!(rows(1, 1), rows(1, 2));
        assert_ne!(rows(1, 1), rows(2, 1));
        assert_ne!(Loader { seed: 8, ..loader }.customers(1, 1).collect::<Vec<_>>(), rows(1, 1));
    }

    #[test]
    fn all_text_has_the_lengths_of_the_specification() {
        let loader = loader(100);
        for (_, stock) in loader.stocks(1) {
            assert_eq!(stock.dists.len(), 240);
            assert!((10..=100).contains(&stock.quantity) && (26..=50).contains(&stock.data.len()));
        }
        for (_, item) in loader.items() {
            assert!((100..=10_000).contains(&item.price) && (14..=24).contains(&item.name.len()));
        }
        for (_, customer) in loader.customers(1, 1) {
            assert!((300..=500).contains(&customer.data.len()) && customer.discount <= 5_000);
            assert!((8..=16).contains(&customer.first.len()) && customer.phone.len() == 16);
        }
    }
}
