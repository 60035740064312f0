//! The workflows of the benches of runs: steps that only return a number, and waits of every kind.

use std::time::Duration;

use ledgerline_workflow::{Ctx, Error, Workflows, all};
use serde_json::Value;

/// What the runs that wait for an event wait for.
pub(crate) const AWAITED: &str = "payment.received";
/// How long the run sleeps that does.
pub(crate) const NAP: Duration = Duration::from_secs(600);

/// All of them.
pub(crate) fn workflows() -> Workflows {
    Workflows::new()
        .register("sequence", "1", sequence)
        .register("fan-out", "1", fan_out)
        .register("empty", "1", empty)
        .register("nap", "1", nap)
        .register("nap-after-steps", "1", nap_after_steps)
        .register("payment", "1", payment)
        .register("payments", "1", payments)
        .register("approval", "1", approval)
}

/// So many steps, one after the other.
async fn sequence(ctx: Ctx, steps: u64) -> Result<u64, Error> {
    let mut sum = 0;
    for step in 0..steps {
        sum += ctx.step(format!("step-{step}"), || async move { Ok::<_, Error>(step) }).await?;
    }
    Ok(sum)
}

/// So many steps at once.
async fn fan_out(ctx: Ctx, steps: u64) -> Result<u64, Error> {
    let steps =
        (0..steps).map(|step| ctx.step(format!("step-{step}"), move || async move { Ok::<_, Error>(step) }));
    Ok(all(steps).await?.into_iter().sum())
}

async fn empty(_: Ctx, _: u64) -> Result<u64, Error> {
    Ok(0)
}

async fn nap(ctx: Ctx, _: u64) -> Result<(), Error> {
    ctx.sleep(NAP).await
}

/// So many steps, and then a sleep: the run does not end.
async fn nap_after_steps(ctx: Ctx, steps: u64) -> Result<u64, Error> {
    let sum = sequence(ctx.clone(), steps).await?;
    ctx.sleep(NAP).await?;
    Ok(sum)
}

/// Waits for an event that contains the input.
async fn payment(ctx: Ctx, criteria: Value) -> Result<Value, Error> {
    Ok(ctx.wait_for_event(AWAITED).matching(criteria).await?.data)
}

/// Waits for an event a number of times, one wait after the other.
async fn payments(ctx: Ctx, (waits, criteria): (u64, Value)) -> Result<u64, Error> {
    for _ in 0..waits {
        ctx.wait_for_event(AWAITED).matching(criteria.clone()).await?;
    }
    Ok(waits)
}

/// Waits for a payload that comes by the token of the input.
async fn approval(ctx: Ctx, token: String) -> Result<Value, Error> {
    let hook = ctx.hook().token(token).await?;
    hook.next().await
}
