//! Requests of terminals: the inputs of the five transactions (clauses 2.4.1, 2.5.1, 2.6.1, 2.7.1, 2.8.1).

use std::fmt;

/// A kind of transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Orders 5 to 15 items.
    NewOrder,
    /// Takes a customer's money.
    Payment,
    /// Looks at a customer's last order.
    OrderStatus,
    /// Delivers the oldest open order of each district.
    Delivery,
    /// Counts recently sold items of which there are few.
    StockLevel,
}

impl Kind {
    /// All five, in the order of the specification.
    pub const ALL: [Self; 5] =
        [Self::NewOrder, Self::Payment, Self::OrderStatus, Self::Delivery, Self::StockLevel];

    /// Its place among all.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name, as `new-order`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NewOrder => "new-order",
            Self::Payment => "payment",
            Self::OrderStatus => "order-status",
            Self::Delivery => "delivery",
            Self::StockLevel => "stock-level",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// The selection of a customer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CustomerBy {
    /// By number.
    Id(u32),
    /// By last name: the middle one, by first name, of all customers with it.
    LastName(String),
}

/// One line of an order to be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderedItem {
    /// The item; the number of no item if the order is to be rolled back.
    pub i_id: u32,
    /// The supplying warehouse.
    pub supply_w_id: u32,
    /// Quantity, 1 to 10.
    pub quantity: u8,
}

/// An order to be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOrder {
    /// Warehouse.
    pub w_id: u32,
    /// District.
    pub d_id: u8,
    /// Customer.
    pub c_id: u32,
    /// 5 to 15 lines.
    pub lines: Vec<OrderedItem>,
    /// The time.
    pub entry_d: u64,
}

/// A payment to be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payment {
    /// Warehouse where it is paid.
    pub w_id: u32,
    /// District where it is paid.
    pub d_id: u8,
    /// The customer's warehouse.
    pub c_w_id: u32,
    /// The customer's district.
    pub c_d_id: u8,
    /// The customer.
    pub customer: CustomerBy,
    /// Cents.
    pub amount: i64,
    /// The time.
    pub date: u64,
}

/// A question for a customer's last order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderStatus {
    /// Warehouse.
    pub w_id: u32,
    /// District.
    pub d_id: u8,
    /// The customer.
    pub customer: CustomerBy,
}

/// A tour through the districts of a warehouse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Warehouse.
    pub w_id: u32,
    /// The carrier, 1 to 10.
    pub carrier_id: u8,
    /// The time.
    pub delivery_d: u64,
}

/// A question for items of which there are few.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StockLevel {
    /// Warehouse.
    pub w_id: u32,
    /// District.
    pub d_id: u8,
    /// Fewer than this is few, 10 to 20.
    pub threshold: i32,
}

/// A request of a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// New-Order.
    NewOrder(NewOrder),
    /// Payment.
    Payment(Payment),
    /// Order-Status.
    OrderStatus(OrderStatus),
    /// Delivery.
    Delivery(Delivery),
    /// Stock-Level.
    StockLevel(StockLevel),
}

impl Input {
    /// Returns the kind of its transaction.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::NewOrder(_) => Kind::NewOrder,
            Self::Payment(_) => Kind::Payment,
            Self::OrderStatus(_) => Kind::OrderStatus,
            Self::Delivery(_) => Kind::Delivery,
            Self::StockLevel(_) => Kind::StockLevel,
        }
    }
}
