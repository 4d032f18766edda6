//! Inputs of the five transactions, which terminals send (clauses 2.4.1, 2.5.1, 2.6.1, 2.7.1, 2.8.1).

use std::fmt;

/// A kind of transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Orders 5 to 15 items.
    NewOrder,
    /// Records a customer's payment.
    Payment,
    /// Reads a customer's last order.
    OrderStatus,
    /// Delivers the oldest open order of each district.
    Delivery,
    /// Counts recently sold items with a low stock.
    StockLevel,
}

impl Kind {
    /// All five kinds, in the order of the specification.
    pub const ALL: [Self; 5] =
        [Self::NewOrder, Self::Payment, Self::OrderStatus, Self::Delivery, Self::StockLevel];

    /// Returns the index in [`Kind::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the name, such as `new-order`.
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
    /// Selection by number.
    Id(u32),
    /// Selection by last name: the middle one, by first name, of all customers with this name.
    LastName(String),
}

/// One line of a new order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderedItem {
    /// Number of the item; an unused number if the order must be rolled back.
    pub i_id: u32,
    /// Number of the supplying warehouse.
    pub supply_w_id: u32,
    /// Quantity, 1 to 10.
    pub quantity: u8,
}

/// Input of New-Order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOrder {
    /// Number of the warehouse.
    pub w_id: u32,
    /// Number of the district.
    pub d_id: u8,
    /// Number of the customer.
    pub c_id: u32,
    /// Lines of the order, 5 to 15.
    pub lines: Vec<OrderedItem>,
    /// Time of the order, in milliseconds since 1970.
    pub entry_d: u64,
}

/// Input of Payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payment {
    /// Number of the warehouse that receives the payment.
    pub w_id: u32,
    /// Number of the district that receives the payment.
    pub d_id: u8,
    /// Number of the customer's warehouse.
    pub c_w_id: u32,
    /// Number of the customer's district.
    pub c_d_id: u8,
    /// The customer.
    pub customer: CustomerBy,
    /// Amount in cents.
    pub amount: i64,
    /// Time of the payment, in milliseconds since 1970.
    pub date: u64,
}

/// Input of Order-Status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderStatus {
    /// Number of the warehouse.
    pub w_id: u32,
    /// Number of the district.
    pub d_id: u8,
    /// The customer.
    pub customer: CustomerBy,
}

/// Input of Delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Number of the warehouse.
    pub w_id: u32,
    /// Number of the carrier, 1 to 10.
    pub carrier_id: u8,
    /// Time of the delivery, in milliseconds since 1970.
    pub delivery_d: u64,
}

/// Input of Stock-Level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StockLevel {
    /// Number of the warehouse.
    pub w_id: u32,
    /// Number of the district.
    pub d_id: u8,
    /// Threshold of a low stock, 10 to 20.
    pub threshold: i32,
}

/// Input of one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Input of New-Order.
    NewOrder(NewOrder),
    /// Input of Payment.
    Payment(Payment),
    /// Input of Order-Status.
    OrderStatus(OrderStatus),
    /// Input of Delivery.
    Delivery(Delivery),
    /// Input of Stock-Level.
    StockLevel(StockLevel),
}

impl Input {
    /// Returns the kind of the transaction.
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
