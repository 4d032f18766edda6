//! A page with all it needs, and what its answer tells the visitor.

use super::Interaction;
use super::row::{Address, CardPayment, Customer};

/// The search term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Search {
    /// Books of authors with this prefix of their last names.
    Author(String),
    /// Books with this prefix of their titles.
    Title(String),
    /// Books of a subject.
    Subject(u8),
}

/// The buyer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Buyer {
    /// A customer, looked up by the user name of this number.
    Known(u64),
    /// A new customer. The shop draws the number; the row's user name and password follow from it.
    New(Box<(Customer, Address)>),
}

/// A page that a user requests, with all its random parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The first page, with the customer's name if known.
    Home {
        /// The known customer.
        customer: Option<u64>,
        /// The page promotes books related to this one.
        promotion: u64,
    },
    /// The newest books of a subject.
    NewProducts {
        /// The subject.
        subject: u8,
        /// As in `Home`.
        promotion: u64,
    },
    /// The best sold books of a subject.
    BestSellers {
        /// The subject.
        subject: u8,
        /// As in `Home`.
        promotion: u64,
        /// `true`: counts sales (TPC-W); otherwise uses the query of `NewProducts` (the kit).
        by_sales: bool,
    },
    /// One book with its author.
    ProductDetail {
        /// The book.
        item: u64,
    },
    /// The form to search by.
    SearchRequest {
        /// As in `Home`; `None` where the page touches no table.
        promotion: Option<u64>,
    },
    /// The results of a search.
    SearchResults {
        /// The search term.
        search: Search,
    },
    /// The cart.
    ShoppingCart {
        /// The user's cart; `None`: a new one.
        cart: Option<u64>,
        /// The book to put in.
        add: Option<u64>,
        /// The book to put in if the cart is empty otherwise.
        instead: u64,
        /// New quantities for the first lines; 0 removes a line.
        refresh: Vec<u32>,
        /// As in `Home`.
        promotion: u64,
    },
    /// The form for new customers.
    CustomerRegistration {
        /// The known customer, where the page shows it.
        customer: Option<u64>,
    },
    /// The buyer and the price.
    BuyRequest {
        /// The cart.
        cart: Option<u64>,
        /// The buyer.
        buyer: Buyer,
    },
    /// The purchase.
    BuyConfirm {
        /// The cart; becomes the order's number.
        cart: Option<u64>,
        /// The customer.
        customer: Option<u64>,
        /// The shipping address, if it differs from the customer's.
        ship_to: Option<Address>,
        /// The shipping type.
        ship_type: u8,
        /// Days until it is shipped.
        ship_days: u8,
        /// The payment; the amount follows from the cart.
        payment: Box<CardPayment>,
        /// A comment on every line.
        comment: String,
    },
    /// The form to ask for an order, with the user name filled in.
    OrderInquiry {
        /// The customer.
        customer: u64,
    },
    /// The latest order of a customer, after a check of the password.
    OrderDisplay {
        /// The customer.
        customer: u64,
    },
    /// The form to change a book.
    AdminRequest {
        /// The book.
        item: u64,
    },
    /// The change of a book.
    AdminConfirm {
        /// The book.
        item: u64,
        /// Its new price.
        cost: i64,
        /// Its new pictures.
        image: u64,
        /// Its new date of publication.
        published: u32,
    },
}

impl Request {
    /// Returns the kind of page.
    #[must_use]
    pub const fn interaction(&self) -> Interaction {
        match self {
            Self::Home { .. } => Interaction::Home,
            Self::NewProducts { .. } => Interaction::NewProducts,
            Self::BestSellers { .. } => Interaction::BestSellers,
            Self::ProductDetail { .. } => Interaction::ProductDetail,
            Self::SearchRequest { .. } => Interaction::SearchRequest,
            Self::SearchResults { .. } => Interaction::SearchResults,
            Self::ShoppingCart { .. } => Interaction::ShoppingCart,
            Self::CustomerRegistration { .. } => Interaction::CustomerRegistration,
            Self::BuyRequest { .. } => Interaction::BuyRequest,
            Self::BuyConfirm { .. } => Interaction::BuyConfirm,
            Self::OrderInquiry { .. } => Interaction::OrderInquiry,
            Self::OrderDisplay { .. } => Interaction::OrderDisplay,
            Self::AdminRequest { .. } => Interaction::AdminRequest,
            Self::AdminConfirm { .. } => Interaction::AdminConfirm,
        }
    }
}

/// The content of a page that the user needs later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The books on the page that can be selected.
    pub shown: Vec<u64>,
    /// The user's cart from now on.
    pub cart: Option<u64>,
    /// The user's number as a customer from now on.
    pub customer: Option<u64>,
    /// The page could not be made as asked: nothing was found, or something was missing. It does not count.
    pub is_error: bool,
}
