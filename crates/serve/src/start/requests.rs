//! What operators ask of the supervisor, which answers each request. A request that comes during an upgrade waits for the end of the
//! upgrade. If the new process serves then, the supervisor of the old one refuses the request.

use std::collections::VecDeque;

use logic::transaction::Changes;
use proxy::front::{Denied, Request};
use tokio::sync::mpsc;

/// Why a process that ends takes no request.
const STOPPING: &str = "the process is stopping: it takes no changes any more";

/// Why a process that was upgraded takes none.
const UPGRADED: &str = "another process has taken over by an upgrade and does not know of this: give the command again, it goes there";

pub(super) struct Requests {
    asked: mpsc::Receiver<Request>,
    /// Requests that came while the supervisor waited for a request to stop.
    waiting: VecDeque<Request>,
}

impl Requests {
    pub(super) fn new(asked: mpsc::Receiver<Request>) -> Self {
        Self { asked, waiting: VecDeque::new() }
    }

    pub(super) async fn next(&mut self) -> Option<Request> {
        match self.waiting.pop_front() {
            Some(request) => Some(request),
            None => self.asked.recv().await,
        }
    }

    /// Completes when an operator asks the process to stop. Other requests wait for [`Self::next`].
    pub(super) async fn stop(&mut self) {
        while let Some(request) = self.asked.recv().await {
            match request {
                Request::Stop => return,
                request => self.waiting.push_back(request),
            }
        }
        // No client is left that could ask.
        std::future::pending().await
    }

    /// The next one. Never completes if no client is left that could ask.
    pub(super) async fn always(&mut self) -> Request {
        match self.next().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }

    /// Refuses requests, because another process has taken over, until the future is dropped.
    pub(super) async fn refuse_when_upgraded(&mut self) {
        self.refuse_all(UPGRADED).await;
        std::future::pending().await
    }

    /// Refuses what is left. A request that comes later is an error for the client that sends it.
    pub(super) async fn end(&mut self) {
        self.asked.close();
        self.refuse_all(STOPPING).await;
    }

    /// Like [`Self::end`], because another process has taken over.
    pub(super) async fn end_upgraded(&mut self) {
        self.asked.close();
        self.refuse_all(UPGRADED).await;
    }

    async fn refuse_all(&mut self, why: &str) {
        while let Some(request) = self.next().await {
            refuse(request, why);
        }
    }
}

/// Refuses a request, because the process is stopping.
pub(super) fn refuse_when_stopping(request: Request) {
    refuse(request, STOPPING);
}

/// Refuses a request. The client may have disconnected.
fn refuse(request: Request, why: &str) {
    let denied = || Denied { message: why.to_owned(), details: String::new() };
    match request {
        Request::Reload { answer, .. } => drop(answer.send(Err(format!("error: {why}")))),
        Request::Change { answer, .. } => drop(answer.send((Err(denied()), Changes::No))),
        Request::Compile { answer } => drop(answer.send(Err(denied()))),
        Request::Upgrade { answer, .. } => drop(answer.send(Err(denied()))),
        Request::Stop => {}
    }
}
