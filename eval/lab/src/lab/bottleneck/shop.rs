//! The bookstore's pages as transactions: the rows that each [`Request`] reads and changes.

mod rows;

use rows::{AuthorView, ItemView, decode, view};
pub use rows::{by_subject, encode, fingerprint, popular};

use super::front::{Key, Row, Session, Statement, TableId, Way, number};
use azekura::Error;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_workload::bookstore::data::OPENING_DAY;
use azekura_workload::bookstore::request::Buyer;
use azekura_workload::bookstore::row::{
    Address, CardPayment, Cart, CartLine, Customer, Item, Order, OrderLine,
};
use azekura_workload::bookstore::text::name_of;
use azekura_workload::bookstore::{
    Answer, BEST_SELLER_ORDERS, CART_LINES, CART_SHOWN, LIST, Request, Scale, Search,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Sequences of the numbers of new customers, addresses and carts.
#[derive(Debug)]
pub struct Sequences {
    customer: AtomicU64,
    address: AtomicU64,
    cart: AtomicU64,
}

impl Sequences {
    /// Returns sequences that begin above the given numbers, which are in use.
    #[must_use]
    pub const fn above(customers: u64, addresses: u64, carts: u64) -> Self {
        Self {
            customer: AtomicU64::new(customers + 1),
            address: AtomicU64::new(addresses + 1),
            cart: AtomicU64::new(carts + 1),
        }
    }

    /// Returns the sequences of a store of this size that has just been filled.
    #[must_use]
    pub const fn of_filled(scale: Scale) -> Self {
        Self::above(scale.customers(), scale.addresses(), scale.orders())
    }
}

/// Answers a request in one transaction, and writes the text of the page into `page`.
///
/// # Errors
///
/// An error of the store. A request for a page that cannot be made returns an [`Answer`] with `is_error`.
pub fn serve(
    session: &mut Session<'_>,
    sequences: &Sequences,
    request: &Request,
    page: &mut String,
) -> Result<Answer, Error> {
    session.transact(|statement| {
        page.clear();
        Clerk { statement, sequences, page: &mut *page }.serve(request)
    })
}

/// Builder of one page in one transaction.
struct Clerk<'c, 's, 'f> {
    statement: &'c mut Statement<'s, 'f>,
    sequences: &'c Sequences,
    page: &'c mut String,
}

/// Returns the answer for a page that could not be made.
fn no_page() -> Answer {
    Answer { is_error: true, ..Answer::default() }
}

impl Clerk<'_, '_, '_> {
    fn serve(&mut self, request: &Request) -> Result<Answer, Error> {
        match request {
            Request::Home { customer, promotion } => self.home(*customer, *promotion),
            Request::NewProducts { subject, promotion }
            | Request::BestSellers { subject, promotion, by_sales: false } => {
                self.new_products(*subject, *promotion)
            }
            Request::BestSellers { subject, promotion, by_sales: true } => {
                self.best_sellers(*subject, *promotion)
            }
            Request::ProductDetail { item } | Request::AdminRequest { item } => self.product_detail(*item),
            Request::SearchRequest { promotion } => {
                promotion.map_or(Ok(()), |item| self.promote(item)).map(|()| Answer::default())
            }
            Request::SearchResults { search } => self.search_results(search),
            Request::ShoppingCart { cart, add, instead, refresh, promotion } => {
                let answer = self.shopping_cart(*cart, *add, *instead, refresh)?;
                self.promote(*promotion).map(|()| answer)
            }
            Request::CustomerRegistration { customer } => {
                customer.map_or(Ok(()), |c| self.greet(c)).map(|()| Answer::default())
            }
            Request::BuyRequest { cart, buyer } => self.buy_request(*cart, buyer),
            Request::BuyConfirm { .. } => self.buy_confirm(request),
            Request::OrderInquiry { customer } => self.greet(*customer).map(|()| Answer::default()),
            Request::OrderDisplay { customer } => self.order_display(*customer),
            Request::AdminConfirm { item, cost, image, published } => {
                self.admin_confirm(*item, *cost, *image, *published)
            }
        }
    }

    fn say(&mut self, text: &str) {
        self.page.push_str(text);
        self.page.push('\n');
    }

    fn home(&mut self, customer: Option<u64>, promotion: u64) -> Result<Answer, Error> {
        if let Some(customer) = customer {
            self.greet(customer)?;
        }
        self.promote(promotion)?;
        Ok(Answer::default())
    }

    fn greet(&mut self, customer: u64) -> Result<(), Error> {
        if let Some(row) = self.statement.index_read(&Key::new(TableId::Customer, customer))? {
            let customer: Customer = decode(&row)?;
            self.say(&customer.user_name);
            self.say(&customer.first_name);
        }
        Ok(())
    }

    /// Adds the five books that are related to an item to the page.
    fn promote(&mut self, item: u64) -> Result<(), Error> {
        let Some(row) = self.statement.index_read(&Key::new(TableId::Item, item))? else { return Ok(()) };
        for related in view::<ItemView<'_>>(&row)?.related {
            if let Some(row) = self.statement.index_read(&Key::new(TableId::Item, related))? {
                let thumbnail = view::<ItemView<'_>>(&row)?.thumbnail;
                self.say(&thumbnail.to_string());
            }
        }
        Ok(())
    }

    fn new_products(&mut self, subject: u8, promotion: u64) -> Result<Answer, Error> {
        let items = self.newest_of(subject, LIST)?;
        let shown = self.list(items)?;
        self.promote(promotion)?;
        Ok(Answer { shown, ..Answer::default() })
    }

    fn newest_of(&mut self, subject: u8, limit: usize) -> Result<Vec<u64>, Error> {
        let from = Key::new(TableId::ItemBySubject, subject);
        let to = Key::new(TableId::ItemBySubject, subject + 1);
        self.statement.scan(&from, &to, Way::Up, limit)?.iter().map(Row::number).collect()
    }

    /// Adds books with their authors to the page: a join of the two tables. Returns `items`.
    fn list(&mut self, items: Vec<u64>) -> Result<Vec<u64>, Error> {
        for &item in &items {
            let Some(row) = self.statement.index_read(&Key::new(TableId::Item, item))? else { continue };
            let book: ItemView<'_> = view(&row)?;
            let author = self.statement.index_read(&Key::new(TableId::Author, book.author))?;
            self.say(book.title);
            if let Some(row) = author {
                let author: AuthorView<'_> = view(&row)?;
                self.say(author.first_name);
                self.say(author.last_name);
            }
        }
        Ok(items)
    }

    /// Makes the page with the fifty best-selling books of a subject in the newest orders.
    fn best_sellers(&mut self, subject: u8, promotion: u64) -> Result<Answer, Error> {
        let (all, end) = (Key::new(TableId::Order, 0u64), Key::new(TableId::Order, u64::MAX));
        let newest = usize::try_from(BEST_SELLER_ORDERS).unwrap_or(usize::MAX);
        let orders = self.statement.scan(&all, &end, Way::Down, newest)?;
        let oldest = orders.last().map_or(0, |order| order.key.leading_number());
        let from = Key::new(TableId::OrderLine, oldest);
        let to = Key::new(TableId::OrderLine, u64::MAX);
        let mut sold: BTreeMap<u64, u64> = BTreeMap::new();
        for line in self.statement.scan(&from, &to, Way::Up, usize::MAX)? {
            let line: OrderLine = decode(&line.value)?;
            *sold.entry(line.item).or_default() += u64::from(line.quantity);
        }
        let mut best = Vec::new();
        for (item, copies) in sold {
            if let Some(row) = self.statement.index_read(&Key::new(TableId::Item, item))?
                && view::<ItemView<'_>>(&row)?.subject == subject
            {
                best.push((Reverse(copies), item));
            }
        }
        best.sort_unstable();
        let shown = self.list(best.into_iter().take(LIST).map(|(_, item)| item).collect())?;
        self.promote(promotion)?;
        Ok(Answer { shown, ..Answer::default() })
    }

    fn order_lines(&mut self, order: u64) -> Result<Vec<(Key, OrderLine)>, Error> {
        let from = Key::new(TableId::OrderLine, order);
        let to = Key::new(TableId::OrderLine, order + 1);
        let rows = self.statement.scan(&from, &to, Way::Up, CART_LINES)?;
        rows.into_iter().map(|row| Ok((row.key, decode(&row.value)?))).collect()
    }

    fn product_detail(&mut self, item: u64) -> Result<Answer, Error> {
        let Some(row) = self.statement.index_read(&Key::new(TableId::Item, item))? else {
            return Ok(no_page());
        };
        let book: Item = decode(&row)?;
        if let Some(row) = self.statement.index_read(&Key::new(TableId::Author, book.author))? {
            let author: AuthorView<'_> = view(&row)?;
            self.say(author.last_name);
        }
        self.say(&book.title);
        self.say(&book.description);
        Ok(Answer::default())
    }

    fn search_results(&mut self, search: &Search) -> Result<Answer, Error> {
        let items = match search {
            Search::Title(title) => self.beginning_with(TableId::ItemByTitle, title)?,
            Search::Author(name) => {
                let mut items = Vec::new();
                for author in self.beginning_with(TableId::AuthorByName, name)? {
                    items.extend(self.by_author(author)?);
                }
                self.by_title(items)?
            }
            Search::Subject(subject) => {
                let items = self.newest_of(*subject, usize::MAX)?;
                self.by_title(items)?
            }
        };
        if items.is_empty() && !matches!(search, Search::Subject(_)) {
            return Ok(no_page());
        }
        Ok(Answer { shown: self.list(items)?, ..Answer::default() })
    }

    /// Returns the numbers of the first rows in an index by name that begin with `name`.
    fn beginning_with(&mut self, index: TableId, name: &str) -> Result<Vec<u64>, Error> {
        // Names are printable ASCII, so all their characters are below U+007F.
        let last = format!("{name}\u{7f}");
        let (from, to) = (Key::new(index, (name, 0u64)), Key::new(index, (last.as_str(), 0u64)));
        self.statement.scan(&from, &to, Way::Up, LIST)?.iter().map(Row::number).collect()
    }

    fn by_author(&mut self, author: u64) -> Result<Vec<u64>, Error> {
        let from = Key::new(TableId::ItemByAuthor, author);
        let to = Key::new(TableId::ItemByAuthor, author + 1);
        self.statement.scan(&from, &to, Way::Up, LIST)?.iter().map(Row::number).collect()
    }

    /// Returns the first fifty of these items in the order of their titles.
    fn by_title(&mut self, items: Vec<u64>) -> Result<Vec<u64>, Error> {
        let mut titled = Vec::with_capacity(items.len());
        for item in items {
            if let Some(row) = self.statement.index_read(&Key::new(TableId::Item, item))? {
                titled.push((view::<ItemView<'_>>(&row)?.title.to_owned(), item));
            }
        }
        titled.sort_unstable();
        Ok(titled.into_iter().take(LIST).map(|(_, item)| item).collect())
    }

    fn cart_lines(&mut self, cart: u64) -> Result<Vec<(Key, CartLine)>, Error> {
        let from = Key::new(TableId::CartLine, cart);
        let to = Key::new(TableId::CartLine, cart + 1);
        let rows = self.statement.scan(&from, &to, Way::Up, CART_LINES)?;
        rows.into_iter().map(|row| Ok((row.key, decode(&row.value)?))).collect()
    }

    fn shopping_cart(
        &mut self,
        known: Option<u64>,
        add: Option<u64>,
        instead: u64,
        refresh: &[u32],
    ) -> Result<Answer, Error> {
        // Relaxed: the number only has to be unique.
        let number = known.unwrap_or_else(|| self.sequences.cart.fetch_add(1, Relaxed));
        let key = Key::new(TableId::Cart, number);
        let row = if known.is_some() { self.statement.locked_read(&key)? } else { None };
        let is_new = row.is_none();
        let mut cart: Cart = row.as_deref().map_or_else(|| Ok(Cart::default()), decode)?;
        let mut lines = if is_new { Vec::new() } else { self.cart_lines(number)? };
        self.refresh(&mut lines, refresh)?;
        match add {
            Some(item) => self.put_into(number, &mut lines, item)?,
            None if lines.is_empty() => self.put_into(number, &mut lines, instead)?,
            None => {}
        }
        cart.price(lines.iter().map(|(_, line)| line));
        cart.date = today();
        let row = encode(&cart)?;
        match is_new {
            true => self.statement.write_row(key, &row)?,
            false => self.statement.update_row(key, &row)?,
        }
        for (_, line) in lines.iter().take(CART_SHOWN) {
            self.say(&line.title);
        }
        Ok(Answer { cart: Some(number), ..Answer::default() })
    }

    fn refresh(&mut self, lines: &mut Vec<(Key, CartLine)>, quantities: &[u32]) -> Result<(), Error> {
        for ((key, line), &quantity) in lines.iter_mut().zip(quantities) {
            line.quantity = quantity;
            match quantity {
                0 => self.statement.delete_row(key.clone())?,
                _ => self.statement.update_row(key.clone(), &encode(line)?)?,
            }
        }
        lines.retain(|(_, line)| line.quantity > 0);
        Ok(())
    }

    fn put_into(&mut self, cart: u64, lines: &mut Vec<(Key, CartLine)>, item: u64) -> Result<(), Error> {
        let key = Key::new(TableId::CartLine, (cart, item));
        if let Some((_, line)) = lines.iter_mut().find(|(k, _)| *k == key) {
            line.quantity += 1;
            return self.statement.update_row(key, &encode(line)?);
        }
        let row = self.statement.index_read(&Key::new(TableId::Item, item))?;
        let (Some(row), true) = (row, lines.len() < CART_LINES) else { return Ok(()) };
        let book: Item = decode(&row)?;
        let line = CartLine {
            quantity: 1,
            cost: book.cost,
            retail_price: book.retail_price,
            title: book.title,
            backing: book.backing,
        };
        self.statement.write_row(key.clone(), &encode(&line)?)?;
        lines.push((key, line));
        Ok(())
    }

    fn buy_request(&mut self, cart: Option<u64>, buyer: &Buyer) -> Result<Answer, Error> {
        let Some(cart_number) = cart else { return Ok(no_page()) };
        let (number, customer) = match buyer {
            Buyer::Known(customer) => match self.refresh_customer(*customer)? {
                Some(known) => known,
                None => return Ok(no_page()),
            },
            Buyer::New(new) => self.register(&new.0, &new.1)?,
        };
        let key = Key::new(TableId::Cart, cart_number);
        let Some(row) = self.statement.locked_read(&key)? else { return Ok(no_page()) };
        let mut cart: Cart = decode(&row)?;
        let lines = self.cart_lines(cart_number)?;
        cart.customer = Some(number);
        cart.discount = customer.discount;
        cart.first_name.clone_from(&customer.first_name);
        cart.last_name.clone_from(&customer.last_name);
        cart.price(lines.iter().map(|(_, line)| line));
        self.statement.update_row(key, &encode(&cart)?)?;
        self.say(&customer.last_name);
        self.say(&cart.total.to_string());
        Ok(Answer { customer: Some(number), ..Answer::default() })
    }

    /// Reads a customer by user name and stores the time of the visit.
    fn refresh_customer(&mut self, customer: u64) -> Result<Option<(u64, Customer)>, Error> {
        let name = Key::new(TableId::CustomerByName, name_of(customer));
        let Some(found) = self.statement.index_read(&name)? else { return Ok(None) };
        let found = number(&found)?;
        let key = Key::new(TableId::Customer, found);
        let Some(row) = self.statement.locked_read(&key)? else { return Ok(None) };
        let mut customer: Customer = decode(&row)?;
        customer.login = today();
        customer.expiration = today() + 7_200;
        self.statement.update_row(key, &encode(&customer)?)?;
        Ok(Some((found, customer)))
    }

    fn register(&mut self, new: &Customer, address: &Address) -> Result<(u64, Customer), Error> {
        // Relaxed: the number only has to be unique.
        let number = self.sequences.customer.fetch_add(1, Relaxed);
        let user_name = name_of(number);
        let address = self.find_or_add_address(address)?;
        let customer = Customer { password: user_name.to_lowercase(), user_name, address, ..new.clone() };
        self.statement.write_row(Key::new(TableId::Customer, number), &encode(&customer)?)?;
        let name = Key::new(TableId::CustomerByName, customer.user_name.as_str());
        self.statement.write_row(name, &number.to_be_bytes())?;
        Ok((number, customer))
    }

    fn find_or_add_address(&mut self, address: &Address) -> Result<u64, Error> {
        let content = fingerprint(address);
        let from = Key::new(TableId::AddressByContent, (content, 0u64));
        let to = Key::new(TableId::AddressByContent, (content, u64::MAX));
        for row in self.statement.scan(&from, &to, Way::Up, LIST)? {
            let known = row.number()?;
            if let Some(row) = self.statement.index_read(&Key::new(TableId::Address, known))?
                && decode::<Address>(&row)? == *address
            {
                return Ok(known);
            }
        }
        // Relaxed: the number only has to be unique.
        let number = self.sequences.address.fetch_add(1, Relaxed);
        self.statement.write_row(Key::new(TableId::Address, number), &encode(address)?)?;
        let index = Key::new(TableId::AddressByContent, (content, number));
        self.statement.write_row(index, &number.to_be_bytes())?;
        Ok(number)
    }

    fn buy_confirm(&mut self, request: &Request) -> Result<Answer, Error> {
        let Request::BuyConfirm { cart: Some(number), customer: Some(customer), ship_to, payment, .. } =
            request
        else {
            return Ok(no_page());
        };
        let (number, customer) = (*number, *customer);
        let Some(row) = self.statement.locked_read(&Key::new(TableId::Cart, number))? else {
            return Ok(no_page());
        };
        let cart: Cart = decode(&row)?;
        let Some(row) = self.statement.index_read(&Key::new(TableId::Customer, customer))? else {
            return Ok(no_page());
        };
        let home = decode::<Customer>(&row)?.address;
        let ship_address = match ship_to {
            Some(address) => self.find_or_add_address(address)?,
            None => home,
        };
        self.order(number, customer, &cart, (home, ship_address), request)?;
        self.sell_lines(number, cart.discount, request)?;
        let payment = CardPayment { amount: cart.total, date: today(), ..(**payment).clone() };
        self.statement.write_row(Key::new(TableId::CardPayment, number), &encode(&payment)?)?;
        self.say(&cart.total.to_string());
        Ok(Answer::default())
    }

    fn order(
        &mut self,
        number: u64,
        customer: u64,
        cart: &Cart,
        (bill_address, ship_address): (u64, u64),
        request: &Request,
    ) -> Result<(), Error> {
        let Request::BuyConfirm { ship_type, ship_days, .. } = request else { return Ok(()) };
        let order = Order {
            customer,
            date: today(),
            sub_total: cart.sub_total,
            tax: cart.tax,
            total: cart.total,
            ship_type: *ship_type,
            ship_date: today() + u64::from(*ship_days) * 86_400,
            bill_address,
            ship_address,
            status: 0,
        };
        self.statement.write_row(Key::new(TableId::Order, number), &encode(&order)?)?;
        let index = Key::new(TableId::OrderByCustomer, (customer, number));
        self.statement.write_row(index, &number.to_be_bytes())
    }

    fn sell_lines(&mut self, order: u64, discount: u8, request: &Request) -> Result<(), Error> {
        let Request::BuyConfirm { comment, .. } = request else { return Ok(()) };
        for (at, (key, line)) in (1u32..).zip(self.cart_lines(order)?) {
            let item = key.trailing_number();
            let sold = OrderLine { item, quantity: line.quantity, discount, comments: comment.clone() };
            self.statement.write_row(Key::new(TableId::OrderLine, (order, at)), &encode(&sold)?)?;
            let index = Key::new(TableId::OrderByItem, (item, order));
            self.statement.write_row(index, &order.to_be_bytes())?;
            let key = Key::new(TableId::Item, item);
            if let Some(row) = self.statement.locked_read(&key)? {
                let mut book: Item = decode(&row)?;
                book.stock = book.stock_after(line.quantity);
                self.statement.update_row(key, &encode(&book)?)?;
            }
        }
        Ok(())
    }

    fn order_display(&mut self, customer: u64) -> Result<Answer, Error> {
        let name = Key::new(TableId::CustomerByName, name_of(customer));
        let Some(found) = self.statement.index_read(&name)? else { return Ok(no_page()) };
        let number = number(&found)?;
        let Some(row) = self.statement.index_read(&Key::new(TableId::Customer, number))? else {
            return Ok(no_page());
        };
        // The visitor's password is the user name in lower case.
        let known: Customer = decode(&row)?;
        if known.password != name_of(customer).to_lowercase() {
            return Ok(no_page());
        }
        let from = Key::new(TableId::OrderByCustomer, (number, 0u64));
        let to = Key::new(TableId::OrderByCustomer, (number, u64::MAX));
        let Some(latest) = self.statement.scan(&from, &to, Way::Down, 1)?.pop() else {
            return Ok(Answer::default()); // the customer has no order yet
        };
        let latest = latest.number()?;
        if let Some(row) = self.statement.index_read(&Key::new(TableId::Order, latest))? {
            let order: Order = decode(&row)?;
            self.show_address(order.bill_address)?;
            self.show_address(order.ship_address)?;
        }
        for (_, line) in self.order_lines(latest)? {
            self.list(vec![line.item])?;
        }
        Ok(Answer::default())
    }

    fn show_address(&mut self, number: u64) -> Result<(), Error> {
        if let Some(row) = self.statement.index_read(&Key::new(TableId::Address, number))? {
            let address: Address = decode(&row)?;
            self.statement.index_read(&Key::new(TableId::Country, address.country))?;
            self.say(&address.street1);
        }
        Ok(())
    }

    fn admin_confirm(&mut self, item: u64, cost: i64, image: u64, published: u32) -> Result<Answer, Error> {
        let key = Key::new(TableId::Item, item);
        let related = self.bought_with(item)?;
        let Some(row) = self.statement.locked_read(&key)? else { return Ok(no_page()) };
        let mut book: Item = decode(&row)?;
        if book.published != published {
            self.statement.delete_row(by_subject(&book, item))?;
            book.published = published;
            self.statement.write_row(by_subject(&book, item), &item.to_be_bytes())?;
        }
        book.cost = cost;
        book.image = image;
        book.thumbnail = image / 2;
        for (slot, related) in book.related.iter_mut().zip(related) {
            *slot = related;
        }
        self.statement.update_row(key, &encode(&book)?)?;
        self.say(&book.title);
        Ok(Answer::default())
    }

    /// Returns the five books that were bought most often together with this one, in its fifty newest orders.
    /// (DBT-1 searches the newest 10,000 orders of all books.)
    fn bought_with(&mut self, item: u64) -> Result<Vec<u64>, Error> {
        let from = Key::new(TableId::OrderByItem, (item, 0u64));
        let to = Key::new(TableId::OrderByItem, (item, u64::MAX));
        let mut copies: BTreeMap<u64, u64> = BTreeMap::new();
        for order in self.statement.scan(&from, &to, Way::Down, LIST)? {
            for (_, line) in self.order_lines(order.number()?)? {
                if line.item != item {
                    *copies.entry(line.item).or_default() += u64::from(line.quantity);
                }
            }
        }
        let mut most: Vec<_> = copies.into_iter().map(|(item, copies)| (Reverse(copies), item)).collect();
        most.sort_unstable();
        Ok(most.into_iter().take(5).map(|(_, item)| item).collect())
    }
}

/// Returns the constant time of the shop, its opening day, so that rows depend only on the requests.
const fn today() -> u64 {
    OPENING_DAY as u64 * 86_400
}
