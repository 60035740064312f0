//! Several futures at once: a replay sees them end in the same order.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures::{
    future::{Join, Ready, join, ready},
    stream::{FuturesUnordered, StreamExt},
};

/// Futures with their index. They are first polled in their order, and then in the order in which the log wakes them.
type Numbered<F> = FuturesUnordered<Join<F, Ready<usize>>>;

fn numbered<I: IntoIterator<Item: Future>>(futures: I) -> Numbered<I::Item> {
    futures.into_iter().enumerate().map(|(index, future)| join(future, ready(index))).collect()
}

/// The results of all `futures`, in their order. At the first error the other futures are dropped.
///
/// ```
/// use ledgerline_workflow::{Ctx, Error, all};
///
/// async fn thumbnails(ctx: Ctx, pictures: Vec<String>) -> Result<Vec<u64>, Error> {
///     all(pictures.iter().map(|picture| ctx.step("shrink", || shrink(picture)))).await
/// }
///
/// async fn shrink(picture: &str) -> Result<u64, Error> {
///     Ok(picture.len() as u64)
/// }
/// ```
pub fn all<I, T, E>(futures: I) -> All<I::Item, T>
where
    I: IntoIterator,
    I::Item: Future<Output = Result<T, E>>,
{
    let running = numbered(futures);
    let results = std::iter::repeat_with(|| None).take(running.len()).collect();
    All { running, results }
}

/// All of several futures: see [`all`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct All<F: Future, T> {
    running: Numbered<F>,
    results: Vec<Option<T>>,
}

impl<F, T, E> Future for All<F, T>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<Vec<T>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { running, results } = self.get_mut();
        while let Some((result, index)) = ready!(running.poll_next_unpin(cx)) {
            match result {
                Ok(result) => results[index] = Some(result),
                Err(error) => {
                    running.clear();
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(std::mem::take(results).into_iter().flatten().collect()))
    }
}

// Results are not pinned.
impl<F: Future, T> Unpin for All<F, T> {}

/// The index and the result of the first of `futures` that ends. The others are dropped: the log closes their waits,
/// sleeps and hooks, and their steps are not recorded.
///
/// ```
/// use std::time::Duration;
///
/// use futures::FutureExt;
/// use ledgerline_workflow::{Ctx, Error, first};
///
/// async fn approved(ctx: Ctx, _: ()) -> Result<bool, Error> {
///     let hook = ctx.hook().await?;
///     let answer = hook.next::<bool>().boxed();
///     let deadline = ctx.sleep(Duration::from_secs(3600)).map(|slept| slept.map(|()| false)).boxed();
///     let (_, approved) = first([answer, deadline]).await;
///     approved
/// }
/// ```
///
/// # Panics
/// When it is awaited and `futures` is empty. The run then fails with that error.
pub fn first<I>(futures: I) -> First<I::Item>
where
    I: IntoIterator,
    I::Item: Future,
{
    First { running: numbered(futures) }
}

/// The first of several futures: see [`first`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct First<F: Future> {
    running: Numbered<F>,
}

impl<F: Future> Future for First<F> {
    type Output = (usize, F::Output);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let running = &mut self.get_mut().running;
        match ready!(running.poll_next_unpin(cx)) {
            Some((result, index)) => {
                running.clear();
                Poll::Ready((index, result))
            }
            None => panic!("`first` was called without futures"),
        }
    }
}
