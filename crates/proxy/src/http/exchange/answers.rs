//! Answers of penstock's own to a request that a pool did not answer.

use std::borrow::Cow;

use logic::account::Refusal;
use logic::retry::Progress;
use state::ending::{ClientProtocol, Ending};

use super::super::failure::Failure;
use super::super::own::deny;
use super::super::session::{After, Client};
use super::super::{answer, body};
use super::Forwarding;
use crate::connect::{ConnectFault, Shortage};
use crate::outcome::Outcome;
use crate::tcp::no_backend;
use crate::upstream::NoBackend;

impl Forwarding<'_> {
    /// Answers that no descriptors are free: resets an HTTP/2 stream with REFUSED_STREAM, so that the client may retry
    /// (RFC 9113 section 8.7); sends an error page to an HTTP/1.1 client.
    pub(super) async fn answer_no_descriptors(
        &self,
        client: &Client,
        outcome: &mut Outcome,
        why: Refusal,
    ) -> After {
        self.session.worker.slot_cache.account().count(why);
        outcome.end(Ending::NoDescriptors(why));
        if outcome.spoken == ClientProtocol::Http2 {
            client.stream.refuse();
            return After::Drop;
        }
        let detail = "Too much is going on at once. Please try again shortly.";
        answer::refuse(self.session, client, outcome, 503, detail, &[("Retry-After", "5")]).await
    }

    pub(super) async fn answer_no_backend(
        &self,
        client: &Client,
        outcome: &mut Outcome,
        none: NoBackend,
        last: Option<Failure>,
    ) -> After {
        if let (NoBackend::AllTried | NoBackend::Unavailable, Some(failure)) = (none, &last) {
            return self.answer_failure(client, outcome, failure).await;
        }
        outcome.end(no_backend(none));
        let detail = match none {
            NoBackend::Denied => return deny(self.session, client, outcome).await,
            NoBackend::Unavailable | NoBackend::AllTried => {
                "No server is available for this request right now."
            }
            NoBackend::QueueFull | NoBackend::QueueTimeout => {
                "All servers are busy. Please try again shortly."
            }
        };
        answer::refuse(self.session, client, outcome, 503, detail, &[("Retry-After", "5")]).await
    }

    pub(super) async fn answer_failure(
        &self,
        client: &Client,
        outcome: &mut Outcome,
        failure: &Failure,
    ) -> After {
        if let Failure::Connect(ConnectFault::NoDescriptors(shortage)) = failure {
            let why = match shortage {
                Shortage::OfShare(why) => *why,
                Shortage::OfPlaces | Shortage::OfKernel => Refusal::NoDescriptors,
            };
            return self.answer_no_descriptors(client, outcome, why).await;
        }
        let (status, detail, ending) = failure.answer();
        outcome.end(ending);
        if failure.progress() == Progress::ResponseStarted {
            return After::Drop;
        }
        answer::refuse(self.session, client, outcome, status, detail, &[]).await
    }

    pub(super) async fn answer_client_fault(
        &self,
        client: &Client,
        outcome: &mut Outcome,
        broken: body::Broken,
    ) -> After {
        let (status, detail, ending) = match broken {
            body::Broken::TooLarge => {
                (413, Cow::from("The body of the request is larger than allowed."), Ending::BodyTooLarge)
            }
            body::Broken::SourceFault(fault) => {
                let detail = format!("The body of the request is malformed: {fault}.");
                (400, detail.into(), Ending::BodyMalformed)
            }
            body::Broken::SourceTimeout => {
                (408, "The body of the request did not arrive in time.".into(), Ending::ClientTimeout)
            }
            _ => {
                outcome.end(Ending::ClientClosed);
                return After::Drop;
            }
        };
        outcome.end(ending);
        answer::refuse(self.session, client, outcome, status, &detail, &[]).await
    }
}
