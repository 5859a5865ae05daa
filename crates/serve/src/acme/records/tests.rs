use std::os::unix::net::UnixStream as Pair;

use config::types::DnsCommand;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::super::helper::{Action, Helper, Reply, Request, line};
use super::super::hooks::Hooks;
use super::*;

/// The far end of the connection to a helper.
struct Far {
    lines: Lines<BufReader<OwnedReadHalf>>,
    answers: OwnedWriteHalf,
}

impl Far {
    async fn asked(&mut self) -> Request {
        let line = self.lines.next_line().await.unwrap().unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    async fn answer(&mut self, request: &Request, result: Result<(), String>) {
        self.answers.write_all(&line(&Reply { id: request.id, result }).unwrap()).await.unwrap();
    }
}

fn records(removals: &Removals) -> (Records, Far) {
    let (ours, theirs) = Pair::pair().unwrap();
    let words = vec!["/hook".to_owned()];
    let hooks = Hooks::new(Helper { commands: vec![words.clone()], stream: Some(ours) }).unwrap();
    let command = DnsCommand { words, limit: Duration::from_secs(60), wait: Duration::ZERO };
    let zone = Zone::Command(HookCommand::new(Arc::new(hooks), command));
    theirs.set_nonblocking(true).unwrap();
    let (from, answers) = UnixStream::from_std(theirs).unwrap().into_split();
    let far = Far { lines: BufReader::new(from).lines(), answers };
    (Records::new(zone, "a.example", removals.clone()), far)
}

#[tokio::test]
async fn a_record_that_an_aborted_order_was_adding_is_removed_once_it_is_there() {
    let removals = Removals::default();
    let (mut records, mut far) = records(&removals);
    let order = tokio::spawn(async move { records.add("a.example", "v".to_owned()).await });
    let present = far.asked().await;
    assert_eq!((present.action, &*present.value), (Action::Present, "v"));
    order.abort();
    assert!(order.await.unwrap_err().is_cancelled());
    let early = tokio::time::timeout(Duration::from_millis(100), far.asked()).await;
    assert!(early.is_err(), "it is removed before it is there: {early:?}");
    far.answer(&present, Ok(())).await;
    let cleanup = far.asked().await;
    assert_eq!((cleanup.action, &cleanup.name, &*cleanup.value), (Action::Cleanup, &present.name, "v"));
    assert_eq!(*removals.0.borrow(), 1);
    far.answer(&cleanup, Ok(())).await;
    removals.ended().await;
    assert_eq!(*removals.0.borrow(), 0);
}

#[tokio::test]
async fn an_abort_during_the_removal_stops_none_of_it() {
    let removals = Removals::default();
    let (mut records, mut far) = records(&removals);
    let order = tokio::spawn(async move {
        for value in ["v", "w"] {
            records.add("*.a.example", value.to_owned()).await.unwrap();
        }
        records.remove().await;
    });
    for value in ["v", "w"] {
        let request = far.asked().await;
        assert_eq!(
            (request.action, &*request.name, &*request.value),
            (Action::Present, "_acme-challenge.a.example.", value)
        );
        far.answer(&request, Ok(())).await;
    }
    let first = far.asked().await;
    assert_eq!((first.action, &*first.value), (Action::Cleanup, "v"));
    order.abort();
    assert!(order.await.unwrap_err().is_cancelled());
    // One that cannot be removed does not keep the next one.
    far.answer(&first, Err("no".to_owned())).await;
    let second = far.asked().await;
    assert_eq!((second.action, &*second.value), (Action::Cleanup, "w"));
    far.answer(&second, Ok(())).await;
    removals.ended().await;
}

#[tokio::test]
async fn what_could_not_be_added_is_removed_too() {
    let removals = Removals::default();
    let (mut records, mut far) = records(&removals);
    let order = tokio::spawn(async move {
        let fault = records.add("a.example", "v".to_owned()).await.unwrap_err();
        records.remove().await;
        fault.to_string()
    });
    let present = far.asked().await;
    far.answer(&present, Err("the answer was lost".to_owned())).await;
    let cleanup = far.asked().await;
    assert_eq!(cleanup.action, Action::Cleanup);
    far.answer(&cleanup, Ok(())).await;
    assert!(order.await.unwrap().contains("the answer was lost"));
}
