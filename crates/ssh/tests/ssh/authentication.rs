//! Logging in to real OpenSSH servers: with files, agents, certificates and passphrases.

use std::fs::{File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Pinned, target};
use hosts::fleet::ending::{Failure, Phase, Reason};
use ssh::authenticate::{Answer, What};
use ssh::keys::{Ask, AskError, Identity, Named, NoPrompt, OtherKeys, Question};
use ssh::{AgentLimits, Attempt, Client, KeyPlan, Keys, Session};
use testing::agent::RunningAgent;
use testing::sshd::{Sshd, keygen, program};

/// Gives the same answer to every question, and counts them.
#[derive(Default)]
struct Typist {
    answer: &'static str,
    asked: AtomicUsize,
}

impl Ask for Typist {
    fn ask(&self, _: &Question) -> Result<zeroize::Zeroizing<String>, AskError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Ok(zeroize::Zeroizing::new(self.answer.to_owned()))
    }
}

fn keys(person: impl Ask + 'static) -> Arc<Keys> {
    Arc::new(Keys::asking(Arc::new(person), AgentLimits::default()))
}

async fn login(sshd: &Sshd, plan: KeyPlan) -> Result<Session, Failure> {
    login_with(sshd, plan, &keys(NoPrompt)).await
}

async fn login_with(sshd: &Sshd, plan: KeyPlan, keys: &Arc<Keys>) -> Result<Session, Failure> {
    let mut target = target(sshd);
    target.keys = plan;
    Client::new(Pinned::of(&[sshd]), Arc::clone(keys)).connect(&target, &|_| {}).await
}

/// A failure, and what a user reads of it.
async fn refused(sshd: &Sshd, plan: KeyPlan) -> (Failure, String) {
    let Err(failure) = login(sshd, plan).await else { panic!("logged in: {}", sshd.log()) };
    assert_eq!(failure.phase, Phase::Authenticate, "{failure:?}");
    let text = format!("{}\n{}", failure.detail, failure.advice.clone().unwrap_or_default());
    (failure, text)
}

fn named(paths: &[&Path]) -> Vec<Identity> {
    paths.iter().map(|path| Identity { path: path.to_path_buf(), named: Named::ByUser }).collect()
}

fn key(directory: &Path, name: &str, arguments: &[&str]) -> PathBuf {
    let path = directory.join(name);
    keygen(&path, arguments);
    path
}

fn authorize(sshd: &Sshd, keys: &[&Path]) {
    let lines: Vec<_> =
        keys.iter().map(|key| std::fs::read_to_string(key.with_extension("pub")).unwrap()).collect();
    std::fs::write(sshd.directory.path().join("authorized_keys"), lines.concat()).unwrap();
}

/// Signs `key.pub` with the CA `ca`; gives the certificate's path.
fn sign(ca: &Path, key: &Path, arguments: &[&str]) -> PathBuf {
    let output = Command::new(program("ssh-keygen"))
        .args(["-q", "-I", "id of the test", "-s"])
        .arg(ca)
        .args(arguments)
        .arg(key.with_extension("pub"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(format!("{}-cert.pub", key.display()))
}

#[tokio::test]
async fn every_kind_of_key_logs_in_from_a_file_and_from_an_agent() {
    let sshd = Sshd::start();
    let directory = sshd.directory.path();
    let kinds = [("ed25519", "256"), ("ecdsa", "256"), ("ecdsa", "384"), ("ecdsa", "521"), ("rsa", "2048")];
    for (kind, bits) in kinds {
        let path = key(directory, &format!("{kind}{bits}"), &["-t", kind, "-b", bits]);
        authorize(&sshd, &[&path]);
        let session = login(&sshd, KeyPlan::of_file(path.clone())).await;
        let session = session.unwrap_or_else(|failure| panic!("{kind}{bits}: {failure:?} {}", sshd.log()));
        assert!(
            session.facts().key.starts_with(&format!("{} SHA256:", path.display())),
            "{}",
            session.facts().key
        );
        let agent = RunningAgent::start();
        agent.load(&path);
        let plan = KeyPlan { agent: Some(agent.socket()), ..KeyPlan::none() };
        let session = login(&sshd, plan).await;
        let session = session.unwrap_or_else(|failure| panic!("{kind}{bits}: {failure:?} {}", sshd.log()));
        assert!(
            session.facts().key.starts_with("\"made by a test\" of the agent SHA256:"),
            "{}",
            session.facts().key
        );
    }
}

#[tokio::test]
async fn rsa_signs_with_sha_512_where_the_server_takes_it() {
    let sshd = Sshd::with("LogLevel DEBUG2");
    let path = key(sshd.directory.path(), "rsa", &["-t", "rsa", "-b", "2048"]);
    authorize(&sshd, &[&path]);
    let agent = RunningAgent::start();
    agent.load(&path);
    let of_agent = KeyPlan { agent: Some(agent.socket()), ..KeyPlan::none() };
    for plan in [KeyPlan::of_file(path), of_agent] {
        login(&sshd, plan).await.unwrap_or_else(|failure| panic!("{failure:?} {}", sshd.log()));
    }
    assert_eq!(sshd.logged("attempting public key rsa-sha2-512", 2), 2, "{}", sshd.log());
}

#[tokio::test]
async fn rsa_key_that_is_too_short_is_not_offered_and_the_next_one_logs_in() {
    let sshd = Sshd::start();
    let path = key(sshd.directory.path(), "rsa", &["-t", "rsa", "-b", "2048"]);
    authorize(&sshd, &[&path, &sshd.client_key]);
    let mut target = target(&sshd);
    target.algorithms.rsa_bits = 3072;
    target.keys = KeyPlan::of_file(path.clone());
    let judge = crate::support::Pinned::of(&[&sshd]);
    let failure = crate::support::client(&judge).connect(&target, &|_| {}).await.err().unwrap();
    let why = "it has 2048 bits, and RequiredRSASize asks for 3072: use an Ed25519 key";
    assert!(failure.detail.contains(why), "{failure:?}");
    assert!(!sshd.log().contains(" RSA "), "it was not even asked about: {}", sshd.log());
    target.keys.identities = named(&[&path, &sshd.client_key]);
    crate::support::client(&judge).connect(&target, &|_| {}).await.unwrap();
    target.algorithms.rsa_bits = 2048;
    target.keys = KeyPlan::of_file(path);
    crate::support::client(&judge).connect(&target, &|_| {}).await.unwrap();
}

#[tokio::test]
async fn the_named_key_is_found_among_ten_of_the_agent() {
    let sshd = Sshd::with("MaxAuthTries 3");
    let agent = RunningAgent::start();
    for number in 0..10 {
        agent.load(&key(sshd.directory.path(), &format!("other{number}"), &["-t", "ed25519"]));
    }
    agent.load(&sshd.client_key);
    let agent = Some(agent.socket());
    let everything = KeyPlan { agent: agent.clone(), ..KeyPlan::none() };
    let (failure, text) = refused(&sshd, everything).await;
    assert_eq!(failure.reason, Reason::PermissionDenied);
    assert!(text.contains("Too many authentication failures"), "{text}");
    assert!(text.contains("IdentitiesOnly yes"), "{text}");
    for others in [OtherKeys::Offered, OtherKeys::Ignored] {
        let plan = KeyPlan {
            identities: named(&[&sshd.client_key]),
            agent: agent.clone(),
            others,
            ..KeyPlan::none()
        };
        let session = login(&sshd, plan.clone()).await.unwrap();
        assert!(session.facts().key.contains("from the agent"), "{}", session.facts().key);
        // The public half is enough to name it
        let public = sshd.client_key.with_extension("pub");
        login(&sshd, KeyPlan { identities: named(&[&public]), ..plan }).await.unwrap();
    }
}

#[tokio::test]
async fn a_key_that_worked_elsewhere_goes_first_where_no_order_is_given() {
    let sshd = Sshd::with("MaxAuthTries 20");
    let agent = RunningAgent::start();
    for number in 0..5 {
        agent.load(&key(sshd.directory.path(), &format!("other{number}"), &["-t", "ed25519"]));
    }
    agent.load(&sshd.client_key);
    let keys = keys(NoPrompt);
    let plan = KeyPlan { agent: Some(agent.socket()), ..KeyPlan::none() };
    let refused = |session: &Session| {
        let attempts = session.facts().attempts;
        attempts.iter().filter(|attempt| matches!(attempt.answer, Answer::Refused { .. })).count()
    };
    assert_eq!(refused(&login_with(&sshd, plan.clone(), &keys).await.unwrap()), 5);
    assert_eq!(refused(&login_with(&sshd, plan, &keys).await.unwrap()), 0);
}

#[tokio::test]
async fn a_refusal_sums_up_what_was_offered_and_what_to_do() {
    let sshd = Sshd::start();
    let stranger = key(sshd.directory.path(), "stranger", &["-t", "ed25519"]);
    let agent = RunningAgent::start();
    agent.load(&key(sshd.directory.path(), "held", &["-t", "ecdsa"]));
    let plan = KeyPlan { identities: named(&[&stranger]), agent: Some(agent.socket()), ..KeyPlan::none() };
    let (failure, text) = refused(&sshd, plan).await;
    assert_eq!(failure.reason, Reason::PermissionDenied);
    assert!(
        text.starts_with(&format!(
            "log in to web1 as {}: offered 2 keys: \"made by a test\" of the agent (ECDSA SHA256:",
            sshd.user
        )),
        "{text}"
    );
    assert!(text.contains(&format!("): refused, {} (ED25519 SHA256:", stranger.display())), "{text}");
    assert!(text.contains("): refused; the server accepts publickey\n"), "{text}");
    assert!(text.contains(&format!("ssh-copy-id -i {} -p {}", stranger.display(), sshd.port)), "{text}");
    // An agent that does not answer is none of the keys that were offered.
    let gone = sshd.directory.path().join("gone");
    let plan = KeyPlan { identities: named(&[&stranger]), agent: Some(gone), ..KeyPlan::none() };
    let (_, text) = refused(&sshd, plan).await;
    assert!(text.contains(&format!("offered 1 key: {} (ED25519 SHA256:", stranger.display())), "{text}");
    assert!(text.contains("): refused; not offered: agent "), "{text}");
    let (failure, text) = refused(&sshd, KeyPlan::none()).await;
    assert_eq!(failure.reason, Reason::PermissionDenied);
    assert!(text.contains("no key was offered; the server accepts publickey\nthere is no key"), "{text}");
}

#[tokio::test]
async fn our_own_faults_are_told_apart_from_refusals() {
    let sshd = Sshd::start();
    let path = key(sshd.directory.path(), "exposed", &["-t", "ed25519"]);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let (failure, text) = refused(&sshd, KeyPlan::of_file(path.clone())).await;
    assert_eq!(failure.reason, Reason::KeyUnusable);
    assert!(text.contains("others can read or change it (mode 0644)"), "{text}");
    assert!(text.contains(&format!("chmod 600 {}", path.display())), "{text}");
    let (failure, text) = refused(&sshd, KeyPlan::of_file(sshd.directory.path().join("none"))).await;
    assert_eq!(failure.reason, Reason::KeyUnusable);
    assert!(text.contains("no such file"), "{text}");
    let gone = KeyPlan { agent: Some(sshd.directory.path().join("gone")), ..KeyPlan::none() };
    let (failure, text) = refused(&sshd, gone.clone()).await;
    assert_eq!(failure.reason, Reason::KeyUnusable);
    assert!(text.contains("there is no such socket"), "{text}");
    // An agent that is gone does not keep files from being used
    login(&sshd, KeyPlan { identities: named(&[&sshd.client_key]), ..gone }).await.unwrap();
}

#[tokio::test]
async fn a_passphrase_is_asked_once_and_only_for_a_key_that_the_server_wants() {
    let sshd = Sshd::start();
    let wanted = sshd.directory.path().join("wanted");
    let unwanted = sshd.directory.path().join("unwanted");
    for path in [&wanted, &unwanted] {
        let arguments = ["-q", "-t", "ed25519", "-a", "1", "-N", "open sesame", "-f"];
        assert!(Command::new(program("ssh-keygen")).args(arguments).arg(path).status().unwrap().success());
    }
    authorize(&sshd, &[&wanted]);
    let person = Arc::new(Typist { answer: "open sesame", ..Typist::default() });
    let keys = Arc::new(Keys::asking(person.clone(), AgentLimits::default()));
    let plan = KeyPlan { identities: named(&[&unwanted, &wanted]), ..KeyPlan::none() };
    let logins = (0..20).map(|_| {
        let (plan, keys) = (plan.clone(), Arc::clone(&keys));
        let mut target = target(&sshd);
        target.keys = plan;
        let client = Client::new(Pinned::of(&[&sshd]), keys);
        tokio::spawn(async move { client.connect(&target, &|_| {}).await.map(|_| ()) })
    });
    for login in logins.collect::<Vec<_>>() {
        login.await.unwrap().unwrap();
    }
    assert_eq!(person.asked.load(Ordering::SeqCst), 1);

    let person = Arc::new(Typist { answer: "wrong", ..Typist::default() });
    let keys = Arc::new(Keys::asking(person.clone(), AgentLimits::default()));
    for _ in 0..2 {
        let failure = login_with(&sshd, plan.clone(), &keys).await.err().unwrap();
        assert_eq!(failure.reason, Reason::KeyUnusable);
        assert!(failure.detail.contains("the passphrase is wrong"), "{}", failure.detail);
    }
    assert_eq!(person.asked.load(Ordering::SeqCst), 3, "three tries, not asked again for the next host");

    let (failure, text) = refused(&sshd, plan).await;
    assert_eq!(failure.reason, Reason::KeyUnusable);
    assert!(text.contains("it is encrypted, and there is no terminal to ask on"), "{text}");
    assert!(text.contains(&format!("ssh-add {}", wanted.display())), "{text}");
}

#[tokio::test]
async fn a_key_whose_public_half_is_unknown_is_asked_for_when_nothing_else_is_left() {
    let sshd = Sshd::start();
    let blind = sshd.directory.path().join("blind");
    let arguments = ["-q", "-t", "rsa", "-b", "2048", "-m", "PKCS8", "-N", "open sesame", "-f"];
    assert!(Command::new(program("ssh-keygen")).args(arguments).arg(&blind).status().unwrap().success());
    let public = std::fs::read_to_string(blind.with_extension("pub")).unwrap();
    std::fs::remove_file(blind.with_extension("pub")).unwrap();
    let person = Arc::new(Typist { answer: "open sesame", ..Typist::default() });
    let keys = Arc::new(Keys::asking(person.clone(), AgentLimits::default()));
    let plan = KeyPlan { identities: named(&[&blind, &sshd.client_key]), ..KeyPlan::none() };
    login_with(&sshd, plan.clone(), &keys).await.unwrap();
    assert_eq!(person.asked.load(Ordering::SeqCst), 0, "the other key did");
    std::fs::write(sshd.directory.path().join("authorized_keys"), public).unwrap();
    login_with(&sshd, plan, &keys).await.unwrap();
    assert_eq!(person.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn certificates_log_in_and_those_that_cannot_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    let ca = key(directory.path(), "ca", &["-t", "ed25519"]);
    let sshd = Sshd::with(&format!("TrustedUserCAKeys {}.pub", ca.display()));
    let user = sshd.user.clone();
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let path = key(directory.path(), kind, &["-t", kind]);
        let certificate = sign(&ca, &path, &["-n", &user]);
        // Beside its key
        let session = login(&sshd, KeyPlan::of_file(path.clone())).await;
        let session = session.unwrap_or_else(|failure| panic!("{kind}: {failure:?} {}", sshd.log()));
        assert!(session.facts().key.contains("-cert.pub SHA256:"), "{}", session.facts().key);
        assert_eq!(session.facts().attempts.len(), 1, "the certificate goes before its key");
        // In the agent
        let agent = RunningAgent::start();
        agent.load(&path);
        let plan = KeyPlan { agent: Some(agent.socket()), ..KeyPlan::none() };
        login(&sshd, plan).await.unwrap_or_else(|failure| panic!("{kind}: {failure:?}"));
        // Elsewhere, and the private half in an agent that has no certificate
        let elsewhere = directory.path().join("elsewhere.pub");
        std::fs::rename(certificate, &elsewhere).unwrap();
        let agent = RunningAgent::start();
        agent.load(&path);
        let plan = KeyPlan {
            certificates: vec![elsewhere],
            agent: Some(agent.socket()),
            others: OtherKeys::Ignored,
            ..KeyPlan::none()
        };
        login(&sshd, plan).await.unwrap_or_else(|failure| panic!("{kind}: {failure:?}"));
    }
    let path = key(directory.path(), "bad", &["-t", "ed25519"]);
    for (arguments, said, advice) in [
        (vec!["-n", &user, "-V", "20200101:20200201"], "not offered: it expired at 2020-0", ""),
        (vec!["-n", &user, "-V", "20900101:20910101"], "not offered: it is not valid before ", ""),
        (vec!["-h", "-n", &user], "not offered: it certifies a host, not a user", ""),
        (vec!["-n", "somebody"], "(it is for somebody, not for ", "have the certificate signed anew"),
        (vec![], "(it names no principal", "have the certificate signed anew"),
    ] {
        sign(&ca, &path, &arguments);
        let (failure, text) = refused(&sshd, KeyPlan::of_file(path.clone())).await;
        assert_eq!(failure.reason, Reason::PermissionDenied);
        assert!(text.contains(said) && text.contains(advice), "{arguments:?}: {text}");
        assert!(text.contains("certificate \"id of the test\""), "{text}");
    }
    std::fs::write(directory.path().join("bad-cert.pub"), "ssh-ed25519-cert-v01@openssh.com AAAA").unwrap();
    let (failure, text) = refused(&sshd, KeyPlan::of_file(path)).await;
    assert!(text.contains("it is not an SSH certificate"), "{failure:?}");
}

/// Makes a key on P-256 whose number begins with zeros, as one of 512 does. They are not stored.
fn short_ecdsa_key(directory: &Path) -> PathBuf {
    let mut number = [0; 32];
    File::open("/dev/urandom").unwrap().read_exact(&mut number[2..]).unwrap();
    // ECPrivateKey (RFC 5915 section 3) without the public key.
    let curve = [0xa0, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
    let der = [&[0x30, 0x31, 2, 1, 1, 4, 0x20][..], &number, &curve].concat();
    let (path, input) = (directory.join("short"), directory.join("short.der"));
    std::fs::write(&input, der).unwrap();
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    run(Command::new(program("openssl"))
        .args(["pkey", "-inform", "DER", "-in"])
        .arg(input)
        .arg("-out")
        .arg(&path));
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    // Writes the key in the form of OpenSSH.
    run(Command::new(program("ssh-keygen")).args(["-p", "-P", "", "-N", "", "-f"]).arg(&path));
    let public = run(Command::new(program("ssh-keygen")).args(["-y", "-f"]).arg(&path));
    std::fs::write(path.with_extension("pub"), public).unwrap();
    path
}

#[tokio::test]
async fn an_ecdsa_key_that_begins_with_zeros_is_read() {
    let sshd = Sshd::start();
    let key = short_ecdsa_key(sshd.directory.path());
    assert!(std::fs::read_to_string(&key).unwrap().contains("BEGIN OPENSSH PRIVATE KEY"));
    authorize(&sshd, &[&key]);
    login(&sshd, KeyPlan::of_file(key)).await.unwrap();
}

#[tokio::test]
async fn a_server_that_wants_two_keys_gets_two() {
    let sshd = Sshd::with("AuthenticationMethods publickey,publickey");
    let second = key(sshd.directory.path(), "second", &["-t", "ecdsa"]);
    authorize(&sshd, &[&sshd.client_key, &second]);
    let plan = KeyPlan { identities: named(&[&sshd.client_key, &second]), ..KeyPlan::none() };
    let session = login(&sshd, plan).await.unwrap();
    let answers: Vec<_> = session.facts().attempts.into_iter().map(|attempt| attempt.answer).collect();
    assert_eq!(answers, [Answer::Partial { next: vec!["publickey"] }, Answer::Accepted]);
    let (failure, text) = refused(&sshd, KeyPlan::of_file(second)).await;
    assert_eq!(failure.reason, Reason::PermissionDenied);
    assert!(text.contains("accepted, and the server wants publickey too"), "{text}");
    assert!(text.contains("more than one proof"), "{text}");
}

#[tokio::test]
async fn a_key_of_the_agent_that_is_restricted_to_a_host_signs_for_it_and_for_no_other() {
    let (sshd, other) = (Sshd::start(), Sshd::start());
    authorize(&other, &[&sshd.client_key]);
    let agent = RunningAgent::start();
    let known = sshd.directory.path().join("known_hosts");
    std::fs::write(&known, format!("web1 {}\n", sshd.host_key())).unwrap();
    agent.add(&["-q", "-h", "web1", "-H", known.to_str().unwrap(), sshd.client_key.to_str().unwrap()]);
    let plan = KeyPlan { agent: Some(agent.socket()), ..KeyPlan::none() };
    // An agent that takes longer than that asks its user, and a refusal is taken for the user's.
    let limits = AgentLimits { person: Duration::from_secs(60), ..AgentLimits::default() };
    let keys = Arc::new(Keys::asking(Arc::new(NoPrompt), limits));
    for _ in 0..2 {
        login_with(&sshd, plan.clone(), &keys).await.unwrap();
    }
    let failure = login_with(&other, plan, &keys).await.err().unwrap();
    assert_eq!(failure.reason, Reason::KeyUnusable);
    assert!(failure.detail.contains("the agent refused to sign"), "{}", failure.detail);
    assert!(failure.advice.unwrap().contains("ssh-add -h"));
}

#[tokio::test]
async fn every_step_is_narrated_in_order() {
    let sshd = Sshd::start();
    let stranger = key(sshd.directory.path(), "stranger", &["-t", "ed25519"]);
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let mut target = target(&sshd);
    target.keys = KeyPlan { identities: named(&[&stranger, &sshd.client_key]), ..KeyPlan::none() };
    let client = Client::new(Pinned::of(&[&sshd]), keys(NoPrompt))
        .narrating(Arc::new(move |attempt: &Attempt| listener.lock().unwrap().push(attempt.clone())));
    let session = client.connect(&target, &|_| {}).await.unwrap();
    let told = told.lock().unwrap().clone();
    assert_eq!(session.facts().attempts, told);
    assert_eq!(told[0].what, What::Methods);
    assert_eq!(told[0].answer, Answer::Refused { next: vec!["publickey"] });
    assert!(matches!((&told[1].what, &told[1].answer), (What::Key { .. }, Answer::Refused { .. })));
    assert!(matches!((&told[2].what, &told[2].answer), (What::Key { .. }, Answer::Accepted)));
    assert_eq!(told.len(), 3);
}
