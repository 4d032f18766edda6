//! The 14 kinds of pages of TPC-W.

/// A kind of page that visitors request. A page that uses the store is one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Interaction {
    /// The home page.
    Home,
    /// The newest books of a subject.
    NewProducts,
    /// The best-selling books of a subject.
    BestSellers,
    /// One book.
    ProductDetail,
    /// The search form.
    SearchRequest,
    /// The results of a search.
    SearchResults,
    /// The cart, possibly with one more book.
    ShoppingCart,
    /// The form for new customers.
    CustomerRegistration,
    /// The purchase form with the buyer and the price.
    BuyRequest,
    /// The purchase.
    BuyConfirm,
    /// The form to request an order.
    OrderInquiry,
    /// The latest order of a customer.
    OrderDisplay,
    /// The form to change a book.
    AdminRequest,
    /// The change of a book.
    AdminConfirm,
}

impl Interaction {
    /// All kinds, in the order of tables.
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

    /// Returns the name in reports.
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

    /// Returns the index in [`Interaction::ALL`].
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
