//! Selection of a customer by number or by last name (clause 2.5.2.2).

use super::rows::{Rows, collect};
use super::schema::{CUSTOMER_BY_NAME, NameKey, present};
use azekura_workload::tpcc::CustomerBy;

/// Returns the number of the selected customer. If several have the selected last name, it is the middle one
/// in the order of first names, and the first of two.
///
/// # Errors
///
/// An error of the store; [`Broken`](super::schema::Broken) if no customer has the name.
pub fn find<R: Rows>(tx: &R, w: u32, d: u8, by: &CustomerBy) -> Result<u32, R::Error> {
    let name = match by {
        CustomerBy::Id(c) => return Ok(*c),
        CustomerBy::LastName(name) => name,
    };
    let first: NameKey = (w, d, name.clone(), String::new(), 0);
    // No name has a zero byte, so this key is above all customers with the name.
    let end: NameKey = (w, d, format!("{name}\0"), String::new(), 0);
    let found = collect(&tx.open(&CUSTOMER_BY_NAME)?, &first, &end, |(.., c), ()| c)?;
    let middle = found.len().saturating_sub(1) / 2;
    Ok(present(found.get(middle).copied(), "customer_by_name", (w, d, name))?)
}
