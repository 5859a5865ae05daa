//! What an open transaction would be as a configuration.

use config::Loaded;
use logic::transaction::Refused;
use proxy::front::Denied;

use super::{Live, Step, denied};

impl Live {
    /// The configuration that `commit` would serve.
    pub(crate) fn in_transaction(&self) -> Result<Loaded, Denied> {
        let transaction = self.ledger.transaction().ok_or_else(|| denied(Refused::None))?;
        self.ledger.transaction_is_current().map_err(denied)?;
        self.load(&transaction.text).map_err(|faults| Denied {
            message: "the transaction cannot be committed yet".to_owned(),
            details: faults,
        })
    }

    /// A transaction that could be committed is tried out before its changes are shown.
    pub(super) fn to_diff(&self) -> Step {
        let is_changed = self.ledger.transaction().is_some_and(|one| one.text != one.base);
        match self.in_transaction() {
            Ok(loaded) if is_changed => Step::DryRun(Box::new(loaded)),
            _ => Step::said(self.diff(None)),
        }
    }
}
