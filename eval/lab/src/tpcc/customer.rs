//! Finding a customer by number, or by last name (clause 2.5.2.2).

use super::rows::{Rows, collect};
use super::schema::{CUSTOMER_BY_NAME, NameKey, present};
use azekura_workload::tpcc::CustomerBy;

/// The number of the customer that is meant. Of several with one last name it is the one in the middle by
/// first name, of two the first.
///
/// # Errors
///
/// Errors of the store; [`Broken`](super::schema::Broken) if no customer has the name.
pub fn find<R: Rows>(tx: &R, w: u32, d: u8, by: &CustomerBy) -> Result<u32, R::Error> {
    let name = match by {
        CustomerBy::Id(c) => return Ok(*c),
        CustomerBy::LastName(name) => name,
    };
    let first: NameKey = (w, d, name.clone(), String::new(), 0);
    // No name has a zero byte: this lies behind all customers of the name.
    let end: NameKey = (w, d, format!("{name}\0"), String::new(), 0);
    let found = collect(&tx.open(&CUSTOMER_BY_NAME)?, &first, &end, |(.., c), ()| c)?;
    let middle = found.len().saturating_sub(1) / 2;
    Ok(present(found.get(middle).copied(), "customer_by_name", (w, d, name))?)
}
