//! The thread that writes the state. A store costs CPU time as well (JSON, a checksum), and operators may cause many of them:
//! while workers want the core, they have it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use sys::cpu::run_in_background;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// The thread. It ends when this is dropped.
pub(super) struct Writer(mpsc::Sender<Job>);

impl Writer {
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<Job>();
        let write = move || {
            if let Err(error) = run_in_background() {
                tracing::debug!("state is written with the priority of workers: {error}");
            }
            // The next store may succeed after one that panicked.
            waiting.iter().for_each(|job| drop(catch_unwind(AssertUnwindSafe(job))));
        };
        thread::Builder::new().name("state".to_owned()).spawn(write)?;
        Ok(Self(jobs))
    }

    /// Does `work` there. `None` if it panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, result) = oneshot::channel();
        // The task that waited may have ended.
        let job = Box::new(move || drop(done.send(work())));
        self.0.send(job).ok()?;
        result.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_one_by_one_and_with_less_priority() {
        let writer = Writer::start().unwrap();
        let nice = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
            fields[16].parse::<i32>().unwrap()
        };
        let there = writer.run(nice).await.unwrap();
        assert_eq!(there, (nice() + 10).min(19));
        assert_eq!(writer.run(|| -> u8 { panic!("on purpose") }).await, None);
        assert_eq!(writer.run(|| 7).await, Some(7), "a panic ends one store");
    }
}
