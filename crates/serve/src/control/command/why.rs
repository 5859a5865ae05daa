//! `why`: explains which backend a session would get, or got.

use crate::report::{past, why as report};
use crate::why::{self, Wanted};

use super::super::sessions;
use super::call::{Call, Later, Refusal, Step, to_json};

pub(super) fn run(call: &Call<'_>) -> Result<Step, Refusal> {
    let wanted = Wanted::read(call.arguments).map_err(|error| Refusal::from(error.to_string()))?;
    let (front, format) = (call.front.clone(), call.format);
    let answer = async move {
        let refused = |error: why::WhyError| Refusal {
            message: error.to_string(),
            details: error.details().to_owned(),
        };
        match wanted {
            Wanted::Now(asked) => {
                let report = why::answer(&front, &asked).await.map_err(refused)?;
                Ok(format.of(|| report::text(&report), || to_json(&report)))
            }
            Wanted::Past(id) => match why::answer_of_past(&front, &id).await {
                Ok(report) => Ok(format.of(|| past::text(&report), || to_json(&report))),
                Err(error) if error.is_unknown() => {
                    Err(sessions::still_open(&front, &id).await.map_or_else(|| refused(error), Refusal::from))
                }
                Err(error) => Err(refused(error)),
            },
        }
    };
    Ok(Step::Later(Later(Box::pin(answer))))
}
