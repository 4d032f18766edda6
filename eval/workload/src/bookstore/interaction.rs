//! The 14 kinds of page of TPC-W.

/// A page that a visitor asks for; each is one transaction of the store, if it touches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Interaction {
    /// The shop's first page.
    Home,
    /// The newest books of a subject.
    NewProducts,
    /// The best sold books of a subject.
    BestSellers,
    /// One book.
    ProductDetail,
    /// The form to search by.
    SearchRequest,
    /// The results of a search.
    SearchResults,
    /// The cart, possibly with one more book.
    ShoppingCart,
    /// The form for new customers.
    CustomerRegistration,
    /// The buyer and the price.
    BuyRequest,
    /// The purchase.
    BuyConfirm,
    /// The form to ask for an order.
    OrderInquiry,
    /// A customer's latest order.
    OrderDisplay,
    /// The form to change a book.
    AdminRequest,
    /// The change.
    AdminConfirm,
}

impl Interaction {
    /// All, in the order in which tables list them.
    pub const ALL: [Self; 14] = [
        Self::Home,
        Self::NewProducts,
        Self::BestSellers,
        Self::ProductDetail,
        Self::SearchRequest,
        Self::SearchResults,
        Self::ShoppingCart,
        Self::CustomerRegistration,
        Self::BuyRequest,
        Self::BuyConfirm,
        Self::OrderInquiry,
        Self::OrderDisplay,
        Self::AdminRequest,
        Self::AdminConfirm,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::NewProducts => "new products",
            Self::BestSellers => "best sellers",
            Self::ProductDetail => "product detail",
            Self::SearchRequest => "search request",
            Self::SearchResults => "search results",
            Self::ShoppingCart => "shopping cart",
            Self::CustomerRegistration => "customer registration",
            Self::BuyRequest => "buy request",
            Self::BuyConfirm => "buy confirm",
            Self::OrderInquiry => "order inquiry",
            Self::OrderDisplay => "order display",
            Self::AdminRequest => "admin request",
            Self::AdminConfirm => "admin confirm",
        }
    }

    /// Its place in [`Interaction::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_at_its_index() {
        for (at, interaction) in Interaction::ALL.into_iter().enumerate() {
            assert_eq!(interaction.index(), at);
        }
    }
}
