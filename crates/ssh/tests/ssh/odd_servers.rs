//! Logging in to servers that want more than a key, or behave oddly (asyncssh).

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Pinned, python};
use hosts::fleet::ending::{Failure, Phase, Reason};
use ssh::authenticate::Answer;
use ssh::keys::{Answered, Ask, AskError, Method, NoPrompt, Question};
use ssh::{AgentLimits, Client, KeyPlan, Keys, Session, Target, Terrapin};
use testing::sshd::{keygen, public_line};

/// asyncssh in one of the modes of `odd_server.py`. Ended and reaped on drop.
struct OddServer {
    directory: tempfile::TempDir,
    port: u16,
    process: Child,
}

impl OddServer {
    fn start(mode: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        keygen(&path("host"), &["-t", "ed25519"]);
        keygen(&path("client"), &["-t", "ed25519"]);
        let mut process = Command::new(python())
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ssh/odd_server.py"))
            .args([mode.as_ref(), path("client.pub").as_os_str(), path("host").as_os_str()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = lines.next().expect("the server says its port").unwrap().parse().unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        Self { directory, port, process }
    }

    fn key(&self) -> PathBuf {
        self.directory.path().join("client")
    }

    async fn login(&self, plan: KeyPlan, person: impl Ask + 'static) -> Result<Session, Failure> {
        let host = public_line(&self.directory.path().join("host.pub"));
        let judge = Arc::new(Pinned { keys: vec![host.parse().unwrap()], ..Pinned::default() });
        let mut target = Target::new("web1", "somebody");
        target.addresses.known = vec![[127, 0, 0, 1].into()];
        target.port = self.port;
        target.keys = plan;
        let keys = Keys::asking(Arc::new(person), AgentLimits::default());
        Client::new(judge, Arc::new(keys)).connect(&target, &|_| {}).await
    }
}

impl Drop for OddServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Gives these answers, and keeps the questions.
struct Answers {
    answers: Mutex<VecDeque<&'static str>>,
    asked: Arc<Mutex<Vec<Question>>>,
}

impl Answers {
    fn of(answers: &[&'static str]) -> (Self, Arc<Mutex<Vec<Question>>>) {
        let asked = Arc::default();
        (Self { answers: Mutex::new(answers.iter().copied().collect()), asked: Arc::clone(&asked) }, asked)
    }
}

impl Ask for Answers {
    fn ask(&self, question: &Question) -> Result<zeroize::Zeroizing<String>, AskError> {
        self.asked.lock().unwrap().push(question.clone());
        let answer = self.answers.lock().unwrap().pop_front().ok_or(AskError::Cancelled)?;
        Ok(zeroize::Zeroizing::new(answer.to_owned()))
    }
}

#[tokio::test]
async fn a_second_factor_is_asked_of_a_person_only_where_that_is_configured() {
    let server = OddServer::start("key-and-question");
    let plan = KeyPlan::of_file(server.key());
    let failure = server.login(plan.clone(), NoPrompt).await.err().unwrap();
    assert_eq!((failure.phase, failure.reason), (Phase::Authenticate, Reason::PermissionDenied));
    assert!(
        failure.detail.contains("accepted, and the server wants keyboard-interactive too"),
        "{}",
        failure.detail
    );
    assert!(failure.advice.unwrap().contains("KbdInteractiveAuthentication yes"));

    let server = OddServer::start("key-and-question");
    let plan = KeyPlan { interactive: Method::On, ..KeyPlan::of_file(server.key()) };
    let (person, asked) = Answers::of(&["123456"]);
    let session = server.login(plan, person).await.unwrap();
    let question = Question { text: "web1: Code: ".to_owned(), answer: Answered::Unseen };
    assert_eq!(*asked.lock().unwrap(), [question]);
    assert_eq!(session.facts().attempts.last().unwrap().answer, Answer::Accepted);
}

#[tokio::test]
async fn questions_go_on_until_the_server_is_content_or_a_person_is_not() {
    let server = OddServer::start("questions-only");
    let plan = KeyPlan { interactive: Method::On, ..KeyPlan::none() };
    let (person, asked) = Answers::of(&["again", "123456"]);
    server.login(plan.clone(), person).await.unwrap();
    let shown: Vec<_> = asked.lock().unwrap().iter().map(|question| question.answer).collect();
    assert_eq!(shown, [Answered::Unseen, Answered::Seen]);
    let (person, _) = Answers::of(&["wrong"]);
    let failure = server.login(plan.clone(), person).await.err().unwrap();
    assert_eq!(failure.reason, Reason::PermissionDenied);
    assert!(failure.detail.contains("keyboard-interactive: refused"), "{}", failure.detail);
    let (person, _) = Answers::of(&[]);
    let failure = server.login(plan, person).await.err().unwrap();
    assert!(failure.detail.contains("it was cancelled at the prompt"), "{}", failure.detail);
    let server = OddServer::start("many-questions");
    let plan = KeyPlan { interactive: Method::On, ..KeyPlan::none() };
    let (person, asked) = Answers::of(&["123456"]);
    let failure = server.login(plan, person).await.err().unwrap();
    assert!(failure.detail.contains("it asked 1000 questions at once"), "{}", failure.detail);
    assert_eq!(asked.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn a_server_without_keys_says_what_it_takes_instead() {
    let server = OddServer::start("questions-only");
    let failure = server.login(KeyPlan::of_file(server.key()), NoPrompt).await.err().unwrap();
    assert_eq!(failure.reason, Reason::PermissionDenied);
    assert!(failure.detail.ends_with("the server accepts keyboard-interactive"), "{}", failure.detail);
}

#[tokio::test]
async fn a_server_that_wants_no_proof_gets_none() {
    let server = OddServer::start("open");
    let session = server.login(KeyPlan::none(), NoPrompt).await.unwrap();
    assert_eq!(session.facts().key, "");
}

#[tokio::test]
async fn a_server_without_strict_key_exchange_is_told_with_the_cipher_that_terrapin_takes() {
    for (mode, expected) in [("not-strict", Terrapin::Open), ("open", Terrapin::Closed)] {
        let server = OddServer::start(mode);
        let session = server.login(KeyPlan::none(), NoPrompt).await.unwrap();
        assert_eq!(session.facts().negotiated.unwrap().terrapin(), expected, "{mode}");
    }
}

#[tokio::test]
async fn a_server_that_asks_twice_gets_one_signature() {
    let server = OddServer::start("sign-again");
    let session = server.login(KeyPlan::of_file(server.key()), NoPrompt).await.unwrap();
    assert_eq!(session.facts().attempts.len(), 1);
}

#[tokio::test]
async fn rsa_signs_with_the_hash_that_the_server_names() {
    let server = OddServer::start("sha-256");
    let rsa = server.directory.path().join("rsa");
    keygen(&rsa, &["-t", "rsa", "-b", "2048"]);
    std::fs::copy(rsa.with_extension("pub"), server.key().with_extension("pub")).unwrap();
    // What the server names may come too late on a busy machine: then SHA-512 is taken.
    for _ in 0..5 {
        if server.login(KeyPlan::of_file(rsa.clone()), NoPrompt).await.is_ok() {
            return;
        }
    }
    panic!("no login");
}

#[tokio::test]
async fn a_flood_of_banners_ends_in_a_login() {
    let server = OddServer::start("banner");
    server.login(KeyPlan::of_file(server.key()), NoPrompt).await.unwrap();
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up() {
    let server = OddServer::start("silent");
    let host = public_line(&server.directory.path().join("host.pub"));
    let judge = Arc::new(Pinned { keys: vec![host.parse().unwrap()], ..Pinned::default() });
    let mut target = Target::new("web1", "somebody");
    target.addresses.known = vec![[127, 0, 0, 1].into()];
    target.port = server.port;
    target.keys = KeyPlan::of_file(server.key());
    target.connect_timeout = Duration::from_secs(10);
    let client = Client::new(judge, Arc::new(Keys::asking(Arc::new(NoPrompt), AgentLimits::default())));
    let failure = client.connect(&target, &|_| {}).await.err().unwrap();
    assert_eq!((failure.phase, failure.reason), (Phase::Authenticate, Reason::TimedOut));
    assert!(failure.detail.contains("the server did not answer within 10 s"), "{}", failure.detail);
}
