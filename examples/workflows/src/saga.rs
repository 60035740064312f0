//! A saga: several bookings that belong together. When one cannot be made, those before it are cancelled, the last one
//! first.
//!
//! ```sh
//! ledgerline --local run start saga --input '{"traveller": "ada", "to": "Turin"}'
//! ledgerline --local run start saga --input '{"traveller": "ada", "to": "Venice"}'    # no cars there
//! ledgerline --local run start saga --input '{"traveller": "ada", "to": "Atlantis"}'  # the code panics
//! ```

use std::time::Duration;

use ledgerline_workflow::{Ctx, Error, Retry};
use serde::{Deserialize, Serialize};

/// Who travels, and where to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Trip {
    pub traveller: String,
    pub to: String,
}

/// Something that was booked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Booking {
    pub what: String,
    pub number: String,
}

/// Book a flight, a hotel and a car, or nothing at all.
pub async fn saga(ctx: Ctx, trip: Trip) -> Result<Vec<Booking>, Error> {
    let mut booked: Vec<Booking> = Vec::new();
    for what in ["flight", "hotel", "car"] {
        // The booking service uses the number to tell a repeated request from a new one.
        let number = ctx.id();
        match ctx.step(format!("book {what}"), || book(what, &number, &trip)).await {
            Ok(booking) => booked.push(booking),
            Err(error) => {
                cancel_all(&ctx, &booked).await?;
                // The run fails with what went wrong first, and its log shows what was done about it.
                return Err(error);
            }
        }
    }
    Ok(booked)
}

/// Undoing must not give up early: these steps are tried for about a day.
async fn cancel_all(ctx: &Ctx, booked: &[Booking]) -> Result<(), Error> {
    let stubborn = Retry::times(100).backoff(Duration::from_secs(1), 2.0, Duration::from_secs(15 * 60));
    for booking in booked.iter().rev() {
        ctx.step(format!("cancel {}", booking.what), || cancel(booking)).retry(stubborn).await?;
    }
    Ok(())
}

/// Stands for a request to a booking service.
async fn book(what: &str, number: &str, trip: &Trip) -> Result<Booking, Error> {
    // Stands for a mistake in the code. A step that panics is tried again, and then fails, as with any other error.
    assert_ne!(trip.to, "Atlantis", "nothing is booked under water");
    if what == "car" && trip.to == "Venice" {
        return Err(Error::fatal("there are no cars in Venice").code("not_available"));
    }
    Ok(Booking { what: what.to_owned(), number: number.to_owned() })
}

/// Stands for a cancellation request to the booking service.
async fn cancel(_: &Booking) -> Result<(), Error> {
    Ok(())
}
