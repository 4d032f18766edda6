//! Payment (clause 2.5.2): a customer pays at the customer's own warehouse or at another one.

use super::customer;
use super::rows::{OpenRows, Rows};
use super::schema::{CUSTOMER, DISTRICT, HISTORY, WAREHOUSE, present};
use azekura_workload::tpcc::{Customer, History, Payment};

/// Records a payment and returns the customer's number. The most contended rows are changed last (see the
/// [module](super)). The warehouse's row is locked only while it is changed, the payment is recorded, and the
/// commit record is appended.
///
/// # Errors
///
/// An error of the store.
pub fn payment<R: Rows>(tx: &R, input: &Payment) -> Result<u32, R::Error> {
    let c_id = customer::find(tx, input.c_w_id, input.c_d_id, &input.customer)?;
    let customers = tx.open(&CUSTOMER)?;
    let customer_key = (input.c_w_id, input.c_d_id, c_id);
    let mut payer = present(customers.row_for_update(&customer_key)?, "customer", customer_key)?;
    pay(&mut payer, c_id, input);
    customers.put(&customer_key, &payer)?;

    let districts = tx.open(&DISTRICT)?;
    let district_key = (input.w_id, input.d_id);
    let mut district = present(districts.row_for_update(&district_key)?, "district", district_key)?;
    district.ytd += input.amount;
    districts.put(&district_key, &district)?;

    let warehouses = tx.open(&WAREHOUSE)?;
    let mut warehouse = present(warehouses.row_for_update(&input.w_id)?, "warehouse", input.w_id)?;
    warehouse.ytd += input.amount;
    warehouses.put(&input.w_id, &warehouse)?;

    let history = History {
        w_id: input.w_id,
        d_id: input.d_id,
        date: input.date,
        amount: input.amount,
        data: format!("{}    {}", warehouse.name, district.name),
    };
    let history_key = (input.c_w_id, input.c_d_id, c_id, payer.payment_cnt);
    tx.open(&HISTORY)?.add(&history_key, &history)?;
    Ok(c_id)
}

fn pay(customer: &mut Customer, c_id: u32, input: &Payment) {
    customer.balance -= input.amount;
    customer.ytd_payment += input.amount;
    customer.payment_cnt += 1;
    if customer.bad_credit {
        customer.prepend_data(&format!(
            "{c_id} {} {} {} {} {}.{:02} ",
            input.c_d_id,
            input.c_w_id,
            input.d_id,
            input.w_id,
            input.amount / 100,
            input.amount % 100
        ));
    }
}
