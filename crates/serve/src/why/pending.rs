//! The configuration of the open transaction, for a question about it.

use std::sync::Arc;
use std::time::Duration;

use proxy::front::{Denied, Front, Request};
use proxy::snapshot::Snapshot;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Time limit: another change or a reload may be before it.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Asks the supervisor for the configuration as it would be served.
pub(super) async fn snapshot(front: &Front) -> Result<Arc<Snapshot>, Denied> {
    let (answer, answered) = oneshot::channel();
    let asked = async {
        front.requests.send(Request::Compile { answer }).await.ok()?;
        answered.await.ok()
    };
    let message = match timeout(ANSWER_TIME, asked).await {
        Ok(Some(compiled)) => return compiled,
        Ok(None) => "the process is ending",
        Err(_) => "no answer yet: the server is busy with a change or a reload; ask again",
    };
    Err(Denied { message: message.to_owned(), details: String::new() })
}
