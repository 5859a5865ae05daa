//! Changes of a store that are durable when these functions return.

use std::sync::Arc;

use access::otp::ledger::{Accepted, Ledger, Record, Unfit};
use access::otp::token::Refusal;
use credentials::{Store, StoreError};

use crate::output::Failure;

/// Makes a change durable.
pub(super) fn change(
    store: &mut Store,
    make: impl FnOnce(&Ledger) -> Result<Record, Unfit> + Send + 'static,
) -> Result<(), Failure> {
    changes(store, |ledger, _| make(ledger).map(|record| ((), record)))
}

/// Makes a change durable that needs the time (in seconds since 1970), and returns what `make` says beside it.
pub(super) fn changes<T: Send + 'static>(
    store: &mut Store,
    make: impl FnOnce(&Ledger, u64) -> Result<(T, Record), Unfit> + Send + 'static,
) -> Result<T, Failure> {
    let made = store.run_one(|ledger, now| match make(ledger, now / 1000) {
        Ok((said, record)) => match ledger.take(record.clone()) {
            Ok(()) => (Ok(said), vec![record]),
            Err(why) => (Err(why), Vec::new()),
        },
        Err(why) => (Err(why.to_string()), Vec::new()),
    });
    made.map_err(failed)?.map_err(Failure::runtime)
}

/// The failure of a store.
pub(super) fn failed(error: Arc<StoreError>) -> Failure {
    Failure::runtime(error)
}

/// What the store says of an OTP.
type Judged = Result<(Accepted, Record), Refusal>;

/// Lets the store judge an OTP, and makes what it changes durable.
pub(super) fn judge(
    store: &mut Store,
    judge: impl FnOnce(&mut Ledger, u64) -> Judged + Send + 'static,
) -> Result<Result<Accepted, Refusal>, Failure> {
    let judged = store.run_one(|ledger, now| match judge(ledger, now / 1000) {
        Ok((accepted, record)) => (Ok(accepted), vec![record]),
        Err(why) => (Err(why), Vec::new()),
    });
    judged.map_err(failed)
}
