//! Futures in boxes. A connection or a session holds the state of a step that is over in no place but a box of its own,
//! and there are several for each.

use std::future::Future;
use std::pin::Pin;

/// Returns a future that is built in its box. `Box::pin` builds it on the stack and copies all of it, also the room for
/// what it has not computed yet: several kilobytes for each request.
pub(crate) fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}
