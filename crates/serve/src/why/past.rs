//! Finds a session that has ended, for `why --session`.

use std::sync::Arc;

use logic::access_log::Kind;
use proxy::front::Front;
use proxy::past::PastSession;
use proxy::question::Question;
use tokio::sync::oneshot;

use super::asked::{self, Asked, AskedError};
use super::workers::{self, Silent};

/// Reason why there is nothing to tell of a session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PastError {
    #[error(
        "no session \"{}\" among the last ones: give its `id` of the access log (header X-Request-Id), or the address and \
         port of its client", text::terminal::line(.0)
    )]
    Unknown(String),
    #[error(transparent)]
    Silent(#[from] Silent),
}

/// The last session with this request id or client address, of all workers.
pub(crate) async fn find(front: &Front, id: &str) -> Result<PastSession, PastError> {
    let wanted: Arc<str> = id.into();
    let ask = |answer: oneshot::Sender<_>| Question::Past { id: wanted.clone(), answer };
    let found = workers::ask(front, ask).await?;
    let latest = found.into_iter().flatten().max_by_key(|session| session.started + session.took);
    latest.map(|session| *session).ok_or_else(|| PastError::Unknown(id.to_owned()))
}

/// The question what the same session would get now. `None` if too little was kept of it.
pub(crate) fn again(session: &PastSession, is_tls: bool) -> Option<Result<Asked, AskedError>> {
    let listener = &*session.listener;
    let from = session.client.to_string();
    let url = match session.kind {
        Kind::Http if session.is_target_cut => return None,
        Kind::Http => {
            let scheme = if is_tls { "https" } else { "http" };
            let target = session.target.as_deref().filter(|target| target.starts_with('/'))?;
            format!("{scheme}://{}{target}", session.host.as_deref()?)
        }
        Kind::Tcp => format!("tcp://{listener}"),
        Kind::Udp => format!("udp://{listener}"),
    };
    let method = session.method.as_deref().map(|method| ["--method", method]);
    let words = ["--listener", listener, "--from", &from].into_iter().chain(method.into_iter().flatten());
    let words: Vec<&str> = words.chain([url.as_str()]).collect();
    Some(asked::Asked::read(&words))
}
