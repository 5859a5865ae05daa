use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

use testing::agent::RunningAgent;
use tokio::net::UnixListener;

const DATA: &[u8] = b"what a server wants signed";

fn limits() -> AgentLimits {
    AgentLimits { fresh: Duration::ZERO, ..AgentLimits::default() }
}

fn quick() -> AgentLimits {
    AgentLimits { list: Duration::from_millis(100), ..limits() }
}

fn keygen(directory: &Path, name: &str, kind: &str) -> PathBuf {
    let path = directory.join(name);
    let output = std::process::Command::new("ssh-keygen")
        .args(["-q", "-N", "", "-C", "evil\u{1b}[2J", "-t", kind, "-f"])
        .arg(&path)
        .output();
    let output = output.unwrap_or_else(|error| panic!("ssh-keygen: {error}: run `make setup`"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

async fn sign(agent: &Agent, key: &PublicKey, algorithm: &str) -> Result<Vec<u8>, AgentFault> {
    agent.sign(SignRequest { key, algorithm, data: DATA, binding: None }).await
}

#[tokio::test]
async fn a_thousand_signatures_at_once_go_through_an_agent_with_few_descriptors() {
    let running = RunningAgent::with_descriptors(Some(24));
    let directory = tempfile::tempdir().unwrap();
    running.load(&keygen(directory.path(), "key", "ed25519"));
    let agent = Arc::new(Agent::new(running.socket(), AgentLimits::default()));
    let key = agent.list().await.unwrap()[0].key.clone();
    let signing: Vec<_> = (0..1000)
        .map(|_| {
            let (agent, key) = (Arc::clone(&agent), key.clone());
            tokio::spawn(async move {
                agent.list().await?;
                sign(&agent, &key, "ssh-ed25519").await
            })
        })
        .collect();
    for signature in signing {
        assert_eq!(signature.await.unwrap().unwrap().len(), 83);
    }
    assert!(agent.idle.lock().unwrap().len() <= 4);
}

#[tokio::test]
async fn what_an_agent_says_of_its_keys_is_harmless_and_rsa_signs_as_asked() {
    let running = RunningAgent::start();
    let directory = tempfile::tempdir().unwrap();
    running.load(&keygen(directory.path(), "key", "rsa"));
    let agent = Agent::new(running.socket(), limits());
    let keys = agent.list().await.unwrap();
    assert_eq!(keys[0].comment, "evil\\u{1b}[2J");
    for algorithm in ["rsa-sha2-256", "rsa-sha2-512"] {
        let signature = sign(&agent, &keys[0].key, algorithm).await.unwrap();
        assert!(signature.windows(12).any(|window| window == algorithm.as_bytes()));
    }
}

#[tokio::test]
async fn an_agent_that_is_locked_or_dies_or_comes_back_is_told_plainly() {
    let directory = tempfile::tempdir().unwrap();
    let path = keygen(directory.path(), "key", "ed25519");
    let running = RunningAgent::start();
    running.load(&path);
    let agent = Agent::new(running.socket(), limits());
    let key = agent.list().await.unwrap()[0].key.clone();
    running.lock();
    assert_eq!(agent.list().await.unwrap().len(), 0);
    let fault = sign(&agent, &key, "ssh-ed25519").await.unwrap_err();
    assert_eq!(fault, AgentFault::RefusedToSign);
    assert!(fault.advice().contains("ssh-add -X"));
    drop(running);
    let fault = sign(&agent, &key, "ssh-ed25519").await.unwrap_err();
    assert!(matches!(fault, AgentFault::Gone { .. }), "{fault}");
}

/// Starts an agent that answers each request with the result of `answer` (`None`: no answer).
fn fake(answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync + 'static) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("agent");
    let listener = UnixListener::bind(&socket).unwrap();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                while let Ok(length) = stream.read_u32().await {
                    let mut request = vec![0; length as usize];
                    stream.read_exact(&mut request).await.unwrap();
                    match answer(&request) {
                        Some(bytes) => stream.write_all(&bytes).await.unwrap(),
                        None => std::future::pending().await,
                    }
                }
            });
        }
    });
    (directory, socket)
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

#[tokio::test]
async fn an_agent_that_hangs_or_talks_nonsense_costs_a_moment_and_no_memory() {
    let list = |answer: Option<Vec<u8>>| async move {
        let limits = if answer.is_none() { quick() } else { limits() };
        let (_directory, socket) = fake(move |_| answer.clone());
        Agent::new(socket, limits).list().await.unwrap_err()
    };
    assert!(matches!(list(None).await, AgentFault::Silent { .. }));
    assert!(matches!(list(Some(framed(&[5]))).await, AgentFault::RefusedToList { .. }));
    assert!(matches!(list(Some(framed(b"HTTP"))).await, AgentFault::Garbage { .. }));
    assert!(
        matches!(list(Some(b"HTTP/1.1 400".to_vec())).await, AgentFault::Garbage { .. }),
        "a length of 1.2 GB"
    );
    assert!(matches!(list(Some(framed(&[]))).await, AgentFault::Garbage { .. }));
    let endless = framed(&[&[12][..], &u32::MAX.to_be_bytes()].concat());
    assert!(matches!(
        list(Some(endless)).await,
        AgentFault::Garbage { what: "a list of more than 2048 keys", .. }
    ));
    let cut = framed(&[&[12][..], &2_u32.to_be_bytes(), &9_u32.to_be_bytes(), b"ab"].concat());
    assert!(matches!(list(Some(cut)).await, AgentFault::Garbage { what: "a list that is cut off", .. }));
    let (_directory, socket) = fake(|_| Some(framed(&[&[14][..], &framed(&framed(b"ssh-rsa"))].concat())));
    let key =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq".parse().unwrap();
    let fault = sign(&Agent::new(socket, limits()), &key, "rsa-sha2-512").await.unwrap_err();
    assert_eq!(fault, AgentFault::OtherAlgorithm("ssh-rsa".to_owned()));
}

/// Returns an invented public key of a security key.
fn touched() -> PublicKey {
    let blob = [framed(b"sk-ssh-ed25519@openssh.com"), framed(&[7; 32]), framed(b"ssh:")].concat();
    PublicKey::from_blob(&blob).unwrap()
}

/// Starts an agent that needs a person for each signature, and that always returns `signature`. `most` is the largest
/// number of requests at the same time.
fn slow(signature: Vec<u8>, now: Arc<AtomicUsize>, most: Arc<AtomicUsize>) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("agent");
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (now, most, signature) = (Arc::clone(&now), Arc::clone(&most), signature.clone());
            tokio::spawn(async move {
                while let Ok(length) = stream.read_u32().await {
                    let mut request = vec![0; length as usize];
                    stream.read_exact(&mut request).await.unwrap();
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    stream.write_all(&framed(&[&[14][..], &framed(&signature)].concat())).await.unwrap();
                }
            });
        }
    });
    (directory, socket)
}

type Signed = (PublicKey, &'static str, Vec<u8>);

async fn most_at_once((key, name, signature): Signed, limits: AgentLimits) -> usize {
    let most = Arc::new(AtomicUsize::new(0));
    let (_directory, socket) = slow(signature, Arc::default(), Arc::clone(&most));
    let agent = Arc::new(Agent::new(socket, limits));
    let signing: Vec<_> = (0..20)
        .map(|_| {
            let (agent, key) = (Arc::clone(&agent), key.clone());
            tokio::spawn(async move { sign(&agent, &key, name).await })
        })
        .collect();
    for signature in signing {
        signature.await.unwrap().unwrap();
    }
    most.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_person_is_asked_for_one_touch_or_confirmation_at_a_time() {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
    let pair = Ed25519KeyPair::generate().unwrap();
    let signed = |name: &str, signature: &[u8]| [framed(name.as_bytes()), framed(signature)].concat();
    let key = PublicKey::from_blob(&signed("ssh-ed25519", pair.public_key().as_ref())).unwrap();
    let plain: Signed = (key, "ssh-ed25519", signed("ssh-ed25519", pair.sign(DATA).as_ref()));
    let name = "sk-ssh-ed25519@openssh.com";
    let touched: Signed = (touched(), name, signed(name, &[1; 64]));
    assert_eq!(most_at_once(touched, limits()).await, 1, "a key that is touched");
    let person = AgentLimits { person: Duration::from_millis(5), ..limits() };
    assert_eq!(most_at_once(plain.clone(), person).await, 1, "a key that a person confirms");
    let never = AgentLimits { person: Duration::from_secs(600), ..limits() };
    let most = most_at_once(plain, never).await;
    assert!((2..=4).contains(&most), "any other key: {most}");
}

#[tokio::test]
async fn somebody_who_said_no_is_not_asked_again_for_the_next_host() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let (_directory, socket) = fake(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20)); // a person thinks
        Some(framed(&[5]))
    });
    let agent = Agent::new(socket, AgentLimits { person: Duration::from_millis(10), ..limits() });
    for _ in 0..3 {
        assert_eq!(sign(&agent, &touched(), "sk-ssh-ed25519@openssh.com").await, Err(AgentFault::Declined));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn wrong_signature_is_the_fault_of_the_agent_and_not_left_to_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let running = RunningAgent::start();
    for (kind, bits) in [
        ("ed25519", "256"),
        ("ecdsa", "256"),
        ("ecdsa", "384"),
        ("ecdsa", "521"),
        ("rsa", "2048"),
        ("rsa", "3001"),
    ] {
        let path = directory.path().join(format!("{kind}{bits}"));
        let made = std::process::Command::new("ssh-keygen")
            .args(["-q", "-N", "", "-t", kind, "-b", bits, "-f"])
            .arg(&path)
            .output();
        assert!(made.unwrap().status.success());
        running.load(&path);
    }
    let agent = Agent::new(running.socket(), limits());
    let held = agent.list().await.unwrap();
    assert_eq!(held.len(), 6);
    for held in held.iter() {
        let algorithms: &[&str] = match held.key.algorithm() {
            "ssh-rsa" => &["rsa-sha2-256", "rsa-sha2-512"],
            other => &[other],
        };
        for algorithm in algorithms {
            // The numbers of a signature are sometimes one byte shorter or longer.
            for at in 0..20_u8 {
                let request = SignRequest { key: &held.key, algorithm, data: &[at], binding: None };
                let right = agent.sign(request).await.unwrap();
                let mut wrong = right.clone();
                *wrong.last_mut().unwrap() ^= 1;
                let cut = right[..right.len() - 1].to_vec();
                for (blob, is_wrong) in [(right, false), (wrong, true), (cut, true)] {
                    assert_eq!(
                        signature::is_wrong(&held.key, &[at], &blob),
                        is_wrong,
                        "{algorithm} {blob:?}"
                    );
                }
            }
            let of_data = sign(&agent, &held.key, algorithm).await.unwrap();
            assert!(signature::is_wrong(&held.key, b"something else", &of_data), "{algorithm}");
        }
    }
}
