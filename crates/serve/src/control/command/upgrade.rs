//! `upgrade [check] [PROGRAM] [drain-for TIME]`.

use std::time::Duration;

use proxy::front::{Extent, Upgrade};

use super::call::{Call, Refusal, Step};

/// Longest time for the sessions of the old process.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

pub(super) fn run(call: &Call<'_>) -> Result<Step, Refusal> {
    let (words, drain) = match call.arguments {
        [words @ .., "drain-for", time] => {
            let drain = config::duration(time).map_err(|why| format!("drain-for {time}: {why}"))?;
            if drain > LONGEST {
                return Err(format!("drain-for {time}: a drain lasts 7d at most").into());
            }
            (words, Some(drain))
        }
        words => (words, None),
    };
    let (words, extent) = match words {
        ["check", words @ ..] => (words, Extent::Check),
        words => (words, Extent::Whole),
    };
    let program = match words {
        [] => None,
        [program] => Some((*program).to_owned()),
        _ => return Err(call.usage()),
    };
    let by = call.who.operator();
    Ok(Step::Upgrade(Upgrade { by, program, drain, extent }, call.format))
}
