//! Serves a socket in a task of its own. A panic ends that task and not its worker: the task begins anew after a pause,
//! because the cause of the panic may be there still.

use std::io;
use std::time::Duration;

use crate::accept::CloseSignal;

/// Pause after a panic. Events have a limit, and a panic at the start must not keep a core busy.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// What operators are to be told of a task.
pub(crate) enum Trouble {
    /// It has ended.
    Ended(io::Error),
    /// It begins anew after the pause.
    Panicked,
}

/// Serves until a task ends without a panic, or the socket is to be closed after one.
pub(crate) async fn serve<F: Future<Output = io::Result<()>> + 'static>(
    close_signal: &CloseSignal,
    pause: Duration,
    mut begin: impl FnMut() -> F,
    mut tell: impl FnMut(Trouble),
) {
    loop {
        match tokio::task::spawn_local(begin()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => return tell(Trouble::Ended(error)),
            Err(error) if error.is_panic() => tell(Trouble::Panicked),
            Err(_) => return,
        }
        tokio::select! {
            biased;
            () = close_signal.closed() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// Serves with a task that panics at each of its first starts. Returns the number of starts and of panics told.
    async fn starts(pause: Duration, panics: u32, close_after: u32) -> (u32, u32) {
        let close_signal = CloseSignal::default();
        let (begun, mut told) = (Rc::new(Cell::new(0)), 0);
        let begin = || {
            let begun = begun.clone();
            async move {
                begun.set(begun.get() + 1);
                assert!(begun.get() > panics, "a fault");
                Ok(())
            }
        };
        let tell = |trouble| {
            assert!(matches!(trouble, Trouble::Panicked));
            told += 1;
            if told == close_after {
                close_signal.close();
            }
        };
        tokio::task::LocalSet::new().run_until(serve(&close_signal, pause, begin, tell)).await;
        (begun.get(), told)
    }

    #[tokio::test]
    async fn a_panic_begins_the_task_anew_after_a_pause_in_which_the_socket_may_be_closed() {
        assert_eq!(starts(Duration::from_millis(1), 2, u32::MAX).await, (3, 2));
        let hour = Duration::from_secs(3600);
        assert_eq!(starts(hour, 5, 1).await, (1, 1), "it waits, and does not begin anew while it is closed");
    }
}
