//! A driver that polls only when it is woken, and a world of other threads.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    task::{Poll, Wake, Waker},
    thread::{self, Thread},
};

use ledgerline_workflow::{Ctx, Error, Retry, all};

use crate::world::World;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Something that another thread does: it is sent a place for the result, and a waker.
#[derive(Default)]
struct Errand {
    done: bool,
    waker: Option<Waker>,
}

type Errands = Sender<Arc<Mutex<Errand>>>;

fn run_errands(errands: &Receiver<Arc<Mutex<Errand>>>) {
    for errand in errands {
        let waker = {
            let mut errand = errand.lock().unwrap();
            errand.done = true;
            errand.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

async fn errand(errands: Errands) {
    let errand = Arc::new(Mutex::new(Errand::default()));
    let mut sent = false;
    poll_fn(|cx| {
        let mut state = errand.lock().unwrap();
        if state.done {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        drop(state);
        if !std::mem::replace(&mut sent, true) {
            errands.send(Arc::clone(&errand)).unwrap();
        }
        Poll::Pending
    })
    .await;
}

#[test]
fn no_wake_from_another_thread_is_lost() {
    let (errands, received) = channel();
    let runner = thread::spawn(move || run_errands(&received));
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    for _ in 0..50 {
        let errands = errands.clone();
        let mut world = World::of(move |ctx: Ctx| {
            let errands = errands.clone();
            async move {
                let (ctx, errands) = (&ctx, &errands);
                let branch = |n: usize| async move {
                    let mut sum = 0;
                    for m in 0..5 {
                        let step = || async move {
                            for _ in 0..m {
                                errand(errands.clone()).await;
                            }
                            Ok::<_, Error>(m)
                        };
                        sum += ctx.step(format!("{n}.{m}"), step).retry(Retry::never()).await?;
                    }
                    Ok::<_, Error>(sum)
                };
                all((0..20).map(branch)).await.map(|sums| sums.into_iter().sum::<usize>())
            }
        });
        while !world.ended() {
            if world.poll_with(&waker).is_ready() {
                world.record();
            } else {
                assert!(world.execution().busy());
                thread::park();
            }
        }
        assert_eq!(world.output(), 200);
    }
    drop(errands);
    runner.join().unwrap();
}
