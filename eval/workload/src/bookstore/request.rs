//! A page request with its parameters, and the answer to it.

use super::Interaction;
use super::row::{Address, CardPayment, Customer};

/// The search term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Search {
    /// Books of authors with last names that begin with this.
    Author(String),
    /// Books with titles that begin with this.
    Title(String),
    /// Books of a subject.
    Subject(u8),
}

/// The buyer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Buyer {
    /// An existing customer, found by the user name for this number.
    Known(u64),
    /// A new customer. The shop assigns the number, which determines the user name and the password.
    New(Box<(Customer, Address)>),
}

/// A page that a user requests, with all its random parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The home page, with the customer's name if known.
    Home {
        /// The known customer.
        customer: Option<u64>,
        /// The book for which the page promotes related books.
        promotion: u64,
    },
    /// The newest books of a subject.
    NewProducts {
        /// The subject.
        subject: u8,
        /// The book for which the page promotes related books.
        promotion: u64,
    },
    /// The best-selling books of a subject.
    BestSellers {
        /// The subject.
        subject: u8,
        /// The book for which the page promotes related books.
        promotion: u64,
        /// Sums up sales, as in TPC-W; otherwise uses the query of `NewProducts`, as in DBT-1.
        by_sales: bool,
    },
    /// One book with its author.
    ProductDetail {
        /// The book.
        item: u64,
    },
    /// The search form.
    SearchRequest {
        /// The book for which the page promotes related books; `None` if the page uses no table.
        promotion: Option<u64>,
    },
    /// The results of a search.
    SearchResults {
        /// The search term.
        search: Search,
    },
    /// The page of a cart.
    ShoppingCart {
        /// The user's cart; `None` creates a new one.
        cart: Option<u64>,
        /// The book to add.
        add: Option<u64>,
        /// The book to add if the cart would be empty otherwise.
        instead: u64,
        /// New quantities for the first lines; 0 removes a line.
        refresh: Vec<u32>,
        /// The book for which the page promotes related books.
        promotion: u64,
    },
    /// The form for new customers.
    CustomerRegistration {
        /// The known customer, if the page shows the name.
        customer: Option<u64>,
    },
    /// The purchase form with the buyer and the price.
    BuyRequest {
        /// The cart.
        cart: Option<u64>,
        /// The buyer.
        buyer: Buyer,
    },
    /// The purchase.
    BuyConfirm {
        /// The cart; its number becomes the order's number.
        cart: Option<u64>,
        /// The customer.
        customer: Option<u64>,
        /// The shipping address, if it differs from the customer's.
        ship_to: Option<Address>,
        /// The way of shipping.
        ship_type: u8,
        /// Days until the order is shipped.
        ship_days: u8,
        /// The payment; the cart determines the amount.
        payment: Box<CardPayment>,
        /// The comment on every line.
        comment: String,
    },
    /// The form to request an order, with the user name filled in.
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
        /// The new price.
        cost: i64,
        /// The new pictures.
        image: u64,
        /// The new date of publication.
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

/// The content of a page that the user needs for later requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// Books on the page that the user can select.
    pub shown: Vec<u64>,
    /// The user's new cart, if it changed.
    pub cart: Option<u64>,
    /// The user's new number as a customer, if it changed.
    pub customer: Option<u64>,
    /// The page could not be made, because something was not found. Such pages do not count.
    pub is_error: bool,
}
