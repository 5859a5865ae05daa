//! Whole runs with a program in place of `ssh`.

use std::io;
use std::sync::Mutex;

use hosts::fleet::ending::{Failure, Phase, Reason, Remote};

use super::engine::Watcher;
use super::happening::Stream;
use super::keep::Keep;
use super::openssh::{Kind, OpenSsh};
use super::output::{Sinks, View};
use super::*;

/// Output of all hosts in one text.
#[derive(Default, Clone)]
struct Heard(Arc<Mutex<String>>);

impl View for Heard {
    fn output(&mut self, _: usize, _: Stream, bytes: &[u8], _: &mut dyn io::Write) -> io::Result<()> {
        self.0.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        Ok(())
    }

    fn ended(&mut self, _: usize, _: &Ending, _: Duration, _: &mut dyn io::Write) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &mut dyn io::Write) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `/bin/sh -c COMMAND` in place of `ssh` for `hosts` hosts, one after the other.
async fn run_here(hosts: usize, command: &str, timeout: Option<Duration>) -> (Outcome, String) {
    let heard = Heard::default();
    let outcome = run_with(Box::new(heard.clone()), hosts, command, timeout).await;
    let text = heard.0.lock().unwrap().clone();
    (outcome, text)
}

async fn run_with(view: Box<dyn View>, hosts: usize, command: &str, timeout: Option<Duration>) -> Outcome {
    let nowhere = Failure {
        phase: Phase::Queued,
        reason: Reason::BadConfiguration,
        detail: String::new(),
        advice: None,
        remote: Remote::NotStarted,
    };
    let names: Vec<String> = (0..hosts).map(|host| format!("h{host}")).collect();
    let program = OpenSsh {
        program: "/bin/sh".into(),
        arguments: vec!["-c".to_owned(), command.to_owned()],
        kind: Kind::Substitute,
        login: String::new(),
    };
    let brake = Brake::default();
    let sinks = Sinks { view, keep: Keep::hashes(hosts), progress: None };
    let out = Outbox::open(sinks, brake.clone()).unwrap();
    let plan = Plan {
        hosts: names.iter().map(|name| Host { name: name.clone(), target: Err(nowhere.clone()) }).collect(),
        job: Job::Command(Order {
            command: String::new(),
            input: Input::None,
            watcher: Watcher::None,
            nonce: "a1".to_owned(),
            connect_timeout: Duration::from_secs(10),
            timeout,
        }),
        engine: Engine::OpenSsh(program),
        limits: Limits { parallel: Parallel::Fixed(1), sessions: 1, delay: Duration::ZERO },
        steps: None,
        journal: None,
    };
    run(plan, Arc::new(Board::new(names)), brake, out).await
}

/// A view that panics.
struct Broken;

impl View for Broken {
    fn output(&mut self, _: usize, _: Stream, _: &[u8], _: &mut dyn io::Write) -> io::Result<()> {
        panic!("a view that breaks")
    }

    fn ended(&mut self, _: usize, _: &Ending, _: Duration, _: &mut dyn io::Write) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &mut dyn io::Write) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn output_that_breaks_stops_the_run_and_is_never_well() {
    let run = run_with(Box::new(Broken), 3, "echo ran", None);
    let outcome = tokio::time::timeout(Duration::from_secs(300), run).await.unwrap();
    assert_eq!((outcome.status, outcome.output), (Status::OutputLost, Shown::InternalError));
}

#[tokio::test]
async fn turn_that_panics_ends_its_host_and_holds_nobody_up() {
    // The clock cannot represent this time: adding it to the current time panics when the command runs.
    let run = run_here(3, "echo ran", Some(Duration::MAX));
    let (outcome, _) = tokio::time::timeout(Duration::from_secs(300), run).await.unwrap();
    for ending in &outcome.endings {
        let Ending::Failed(failure) = ending else { panic!("{ending:?}") };
        assert_eq!((failure.reason, failure.remote), (Reason::Internal, Remote::MayHaveRun));
        assert!(failure.detail.contains("internal error") && failure.detail.contains("may have run"));
    }
    assert_eq!((outcome.endings.len(), outcome.status), (3, Status::MayHaveRun));
}

#[test]
fn copy_whose_turn_breaks_says_what_may_have_become_of_files() {
    let told = |what| {
        let order = copy::Order::new(what, 1, Duration::ZERO, None);
        let Ending::Failed(failure) = turn::broken(&Job::Copy(order)).ending else { panic!() };
        (failure.remote, failure.detail)
    };
    let allowance = ssh::Allowance { bytes: 0, entries: 0, links: ssh::Links::Inside };
    let got = told(copy::What::Get { sources: Vec::new(), directory: "here".into(), allowance });
    assert_eq!(got.0, Remote::Ended);
    assert!(got.1.contains("not everything is here"), "{}", got.1);
    let tree = Arc::new(ssh::Tree::read(&[]).unwrap());
    let put = told(copy::What::Put { tree, destination: String::new() });
    assert_eq!(put.0, Remote::MayHaveRun);
    assert!(put.1.contains("files may have been changed there"), "{}", put.1);
}
