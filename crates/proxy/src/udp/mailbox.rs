//! What operators ask of the tasks that serve sockets for UDP. A task looks into its mailbox when it is woken.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use logic::sessions::Rates;
use slab::Slab;
use tokio::sync::oneshot;

use crate::listing::{Asked, EndedSession, Scanned, Target, Whence};
use crate::question::WAITING;

/// The sockets for UDP of a worker.
#[derive(Default)]
pub(crate) struct Mailboxes {
    sockets: RefCell<Slab<Rc<Mailbox>>>,
    /// Flows that have begun.
    begun: Cell<u64>,
}

impl Mailboxes {
    /// Serial number of the next flow.
    pub(super) fn next_serial(&self) -> u64 {
        self.begun.replace(self.begun.get().wrapping_add(1))
    }

    /// The first socket from this index on.
    pub(crate) fn first_from(&self, index: usize) -> Option<usize> {
        self.sockets.borrow().iter().map(|(at, _)| at).find(|at| *at >= index)
    }

    /// Asks the task of a socket.
    pub(crate) fn ask(&self, socket: usize, question: FlowQuestion) {
        match self.sockets.borrow().get(socket) {
            Some(mailbox) => mailbox.put(question),
            // It is closed: its flows have ended.
            None => question.answer_without_flows(self.first_from(socket + 1)),
        }
    }

    /// Frees what rates are measured from when no operator has asked for a while.
    pub(crate) fn forget_rates(&self, now: Instant) {
        for (_, mailbox) in self.sockets.borrow().iter() {
            mailbox.rates.borrow_mut().forget(now);
        }
    }
}

pub(crate) enum FlowQuestion {
    /// Asks for a part of the flows, from the place with this index on.
    Scan { asked: Arc<Asked>, from: usize, answer: oneshot::Sender<Scanned> },
    /// Ends these flows.
    Kill { targets: Vec<Target>, answer: oneshot::Sender<Vec<EndedSession>> },
}

impl FlowQuestion {
    fn answer_without_flows(self, next_socket: Option<usize>) {
        // The operator may have left.
        match self {
            Self::Scan { answer, .. } => {
                drop(answer.send(Scanned { next: next_socket.map(Whence::socket), ..Scanned::default() }));
            }
            Self::Kill { answer, .. } => drop(answer.send(Vec::new())),
        }
    }
}

/// What operators want of the task of a socket.
#[derive(Default)]
struct Mailbox {
    questions: RefCell<Vec<FlowQuestion>>,
    task: Cell<Option<Waker>>,
    rates: RefCell<Rates>,
}

impl Mailbox {
    fn put(&self, question: FlowQuestion) {
        let mut questions = self.questions.borrow_mut();
        // Each operator waits for one answer, so no more come.
        if questions.len() < WAITING {
            questions.push(question);
        }
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }
}

/// The mailbox of a task.
pub(super) struct Registered {
    all: Rc<Mailboxes>,
    /// Index of the socket among those of its worker.
    pub(super) socket: usize,
    mailbox: Rc<Mailbox>,
}

impl Registered {
    pub(super) fn new(all: &Rc<Mailboxes>) -> Self {
        let mailbox = Rc::new(Mailbox::default());
        let socket = all.sockets.borrow_mut().insert(mailbox.clone());
        Self { all: all.clone(), socket, mailbox }
    }

    /// Waits for a question.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.mailbox.questions.borrow().is_empty() {
            return Poll::Ready(());
        }
        let kept = self.mailbox.task.take().filter(|before| before.will_wake(cx.waker()));
        self.mailbox.task.set(Some(kept.unwrap_or_else(|| cx.waker().clone())));
        Poll::Pending
    }

    /// Takes the questions that wait.
    pub(super) fn take(&self) -> Vec<FlowQuestion> {
        self.mailbox.questions.take()
    }

    pub(super) fn rates(&self) -> RefMut<'_, Rates> {
        self.mailbox.rates.borrow_mut()
    }

    /// The next socket of the worker.
    pub(super) fn next_socket(&self) -> Option<usize> {
        self.all.first_from(self.socket + 1)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.all.sockets.borrow_mut().try_remove(self.socket);
        let next_socket = self.next_socket();
        for question in self.take() {
            question.answer_without_flows(next_socket);
        }
    }
}
