//! Finds a session that has ended, for `why --session`.

use std::sync::Arc;

use config::types::Protocol;
use logic::access_log::Kind;
use proxy::front::Front;
use proxy::past::PastSession;
use proxy::question::Question;
use proxy::snapshot::ListenerPlan;
use tokio::sync::oneshot;

use super::asked::{Asked, AskedError};
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

/// The question what the same session would get now.
pub(crate) struct Again {
    pub(crate) asked: Asked,
    /// Whether it is the whole session. Of a client that came to a listener of requests or of TLS and sent neither, only
    /// where it came from is known.
    pub(crate) is_whole: bool,
}

/// `None` if too little was kept of the session. `plan` is that of its listener now.
pub(crate) fn again(session: &PastSession, plan: &ListenerPlan) -> Option<Result<Again, AskedError>> {
    let listener = &*session.listener;
    let from = session.client.to_string();
    let scheme = if plan.tls.is_some() { "https" } else { "http" };
    let mut is_whole = true;
    let url = match session.kind {
        Kind::Http if session.is_target_cut => return None,
        Kind::Http => {
            let target = session.target.as_deref().filter(|target| target.starts_with('/'))?;
            format!("{scheme}://{}{target}", session.host.as_deref()?)
        }
        Kind::Tcp => {
            let scheme = match plan.settings.protocol {
                Protocol::Http(_) => scheme,
                Protocol::TlsPassthrough(_) => "tls",
                Protocol::Tcp(_) | Protocol::Udp(_) | Protocol::Dsr(_) => "tcp",
            };
            is_whole = scheme == "tcp";
            format!("{scheme}://{listener}")
        }
        Kind::Udp => format!("udp://{listener}"),
    };
    let method = session.method.as_deref().map(|method| ["--method", method]);
    let words = ["--listener", listener, "--from", &from].into_iter().chain(method.into_iter().flatten());
    let words: Vec<&str> = words.chain([url.as_str()]).collect();
    Some(Asked::read(&words).map(|asked| Again { asked, is_whole }))
}
