//! Asks all workers the same question.

use std::time::Duration;

use proxy::front::Front;
use proxy::question::Question;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Time limit of a worker's answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// A worker has not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Silent {
    #[error("worker {worker} has not answered within {} s: it is busy or stopped; ask again", ANSWER_TIME.as_secs())]
    Busy { worker: usize },
    #[error("the process is ending")]
    Ending,
}

/// Returns the answers in the order of the workers.
pub(crate) async fn ask<T>(
    front: &Front,
    question: impl Fn(oneshot::Sender<T>) -> Question,
) -> Result<Vec<T>, Silent> {
    let mut waiting = Vec::new();
    for worker in &front.questions {
        let (answer, answered) = oneshot::channel();
        // With a full channel the worker does not answer, and the wait below ends at once.
        let sent = worker.try_send(question(answer));
        waiting.push((answered, sent.is_ok()));
    }
    let mut answers = Vec::new();
    for (worker, (answered, is_sent)) in waiting.into_iter().enumerate() {
        match timeout(ANSWER_TIME, answered).await {
            Ok(Ok(answer)) => answers.push(answer),
            Ok(Err(_)) if is_sent => return Err(Silent::Ending),
            Ok(Err(_)) | Err(_) => return Err(Silent::Busy { worker }),
        }
    }
    Ok(answers)
}
