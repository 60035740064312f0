//! Order fulfilment: goods are reserved, and then the run waits for a payment, for three days if need be.
//!
//! ```sh
//! ledgerline --local run start order --input '{"orderId": "o-7", "lines": [{"sku": "tea", "quantity": 2, "cents": 450}]}'
//! ledgerline --local send-event payment.received --match '{"orderId": "o-7"}' --event-data '{"cents": 900}'
//! ```

use std::time::Duration;

use ledgerline_workflow::{Ctx, Error, Retry};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// How long the run waits for the payment before it releases the goods.
const PAYMENT_TIMEOUT: Duration = Duration::from_secs(72 * 60 * 60);

/// What a customer orders.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Order {
    pub order_id: String,
    pub lines: Vec<Line>,
}

/// One kind of goods.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Line {
    pub sku: String,
    pub quantity: u64,
    /// The price of one.
    pub cents: u64,
}

/// What became of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "state")]
#[allow(missing_docs)]
pub enum Fulfilment {
    /// It was paid and is on its way.
    Shipped { charged_cents: u64, parcel: String },
    /// No payment came in time; the goods can be sold to other customers.
    Expired,
}

/// The warehouse's reservation for an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reservation {
    reservation_id: String,
    cents: u64,
}

/// What the sender of `payment.received` says.
#[derive(Deserialize)]
struct Payment {
    cents: u64,
}

/// Reserve, wait for the payment, charge, ship; release what was reserved if no payment comes.
pub async fn order(ctx: Ctx, order: Order) -> Result<Fulfilment, Error> {
    // The same at every replay and every attempt, so the warehouse can tell a repeated request from a new one.
    let reservation_id = ctx.id();
    let reservation: Reservation =
        ctx.step("reserve", || reserve(&reservation_id, &order)).input(&order.lines).await?;

    // Nothing runs while the run waits. A payment that came before this line is found, too: an order id is known to
    // the payer as soon as the order is.
    let payment = ctx
        .wait_for_event("payment.received")
        .matching(json!({ "orderId": order.order_id }))
        .timeout(PAYMENT_TIMEOUT)
        .await;
    let payment: Payment = match payment {
        Ok(event) => event.data_as()?,
        Err(error) if error.is_timeout() => {
            ctx.step("release", || release(&reservation)).await?;
            return Ok(Fulfilment::Expired);
        }
        Err(error) => return Err(error),
    };

    let ten_times = Retry::times(10).backoff(Duration::from_secs(1), 2.0, Duration::from_secs(60));
    let charged_cents = ctx.step("charge", || charge(&reservation, &payment)).retry(ten_times).await?;
    let parcel = ctx.step("ship", || ship(&reservation)).retry(ten_times).await?;
    Ok(Fulfilment::Shipped { charged_cents, parcel })
}

/// Stands for a request to the warehouse.
async fn reserve(reservation_id: &str, order: &Order) -> Result<Reservation, Error> {
    if order.lines.iter().any(|line| line.quantity > 1_000) {
        // Asking again would not help: no retry.
        return Err(Error::fatal("so many are not in stock").code("sold_out"));
    }
    let cents = order.lines.iter().map(|line| line.quantity * line.cents).sum();
    Ok(Reservation { reservation_id: reservation_id.to_owned(), cents })
}

/// Stands for a request to the payment service.
async fn charge(reservation: &Reservation, payment: &Payment) -> Result<u64, Error> {
    if payment.cents < reservation.cents {
        let told = format!("{} cents were paid, {} are due", payment.cents, reservation.cents);
        return Err(Error::fatal(told).code("underpaid"));
    }
    Ok(reservation.cents)
}

/// Stands for a request to the carrier.
async fn ship(reservation: &Reservation) -> Result<String, Error> {
    Ok(format!("parcel-{}", reservation.reservation_id))
}

/// Stands for a request to the warehouse.
async fn release(_: &Reservation) -> Result<(), Error> {
    Ok(())
}
