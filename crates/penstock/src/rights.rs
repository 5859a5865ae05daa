//! Gives up what a command for operators does not need, before it reads anything. `serve` gives up more, and later.

use sys::privilege::{Programs, reduce};

use crate::output::complain;

/// Where the kernel refuses, the command goes on with the rights of the user who started it, and says so.
pub(crate) fn give_up(programs: Programs) {
    if let Err(error) = reduce(programs) {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        complain(&format!("note: it keeps rights that it does not need: {error}{cause}\n"));
    }
}
