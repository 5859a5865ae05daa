//! Orders with an authority that gives rare answers.

use std::pin::Pin;
use std::sync::Mutex;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, HttpClient, NewAccount};
use serde_json::{Value, json};

use super::*;

/// Answers of the authority: to a new order, after finalization, and to the first order with `replaces`.
struct Script {
    order: Value,
    finalized: Value,
    replacing: Option<Value>,
}

struct Authority {
    script: Script,
    asked: Arc<Mutex<Vec<String>>>,
}

impl HttpClient for Authority {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let path = request.uri().path().to_owned();
        let before = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(path.clone());
            asked.iter().filter(|other| **other == path).count()
        };
        let url = |path: &str| format!("https://authority.test{path}");
        let replacing = self.script.replacing.as_ref().filter(|_| before == 1);
        let (status, body) = match path.as_str() {
            "/dir" => (
                200,
                json!({
                    "newNonce": url("/nonce"), "newAccount": url("/account"), "newOrder": url("/new-order"),
                    "renewalInfo": url("/renewal"),
                }),
            ),
            "/new-order" => match replacing {
                Some(problem) => (409, problem.clone()),
                None => (201, self.script.order.clone()),
            },
            "/authorization" => (
                200,
                json!({
                    "identifier": { "type": "dns", "value": "a.example" }, "status": "valid", "challenges": [],
                }),
            ),
            "/finalize" | "/order" => (200, self.script.finalized.clone()),
            _ => (200, json!({})),
        };
        let location = if path == "/account" { "/account/1" } else { "/order" };
        let answer = Response::builder()
            .status(status)
            .header("Replay-Nonce", HeaderValue::from_static("nonce"))
            .header("Location", url(location))
            .body(Full::new(Bytes::from(body.to_string())));
        Box::pin(async move {
            // A real client reads the whole body.
            let _ = request.into_body().collect().await;
            Ok(BytesResponse::from(answer?))
        })
    }
}

fn answers() -> Answers {
    Answers {
        challenges: Arc::default(),
        descriptors: state::account::Account::new(1),
        hooks: Arc::default(),
        removals: Removals::default(),
    }
}

fn an_order(status: &str) -> Value {
    json!({
        "status": status, "authorizations": ["https://authority.test/authorization"],
        "finalize": "https://authority.test/finalize",
    })
}

/// Runs an order for `a.example`. Returns its fault and the requests that the authority received.
async fn outcome(script: Script, replaces: Option<CertificateIdentifier<'static>>) -> (Fault, Vec<String>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let authority = Authority { script, asked: asked.clone() };
    let wanted = NewAccount { contact: &[], terms_of_service_agreed: true, only_return_existing: false };
    let (account, _) = Account::builder_with_http(Box::new(authority))
        .create(&wanted, "https://authority.test/dir".to_owned(), None)
        .await
        .unwrap();
    let certificate = AcmeCertificate { name: "a.example".into(), names: vec!["a.example".to_owned()] };
    let limit = Duration::from_secs(1);
    let wanted = Wanted {
        certificate: &certificate,
        challenge: &AcmeChallenge::Http01,
        profile: None,
        replaces,
        limits: Limits { validation: limit, issuance: limit },
    };
    let fault = order(&account, &wanted, &answers()).await.unwrap_err();
    let asked = asked.lock().unwrap().clone();
    (fault, asked)
}

#[tokio::test]
async fn an_order_that_is_processed_for_ever_is_given_up() {
    let script = Script { order: an_order("ready"), finalized: an_order("processing"), replacing: None };
    let (fault, asked) = outcome(script, None).await;
    assert!(matches!(fault, Fault::Late { what: "sign the certificate", .. }), "{fault}");
    assert!(asked.iter().any(|path| path == "/order"), "{asked:?}");
}

#[tokio::test]
async fn an_authority_that_will_not_replace_a_certificate_may_issue_a_new_one() {
    let problem = json!({ "type": "urn:ietf:params:acme:error:alreadyReplaced", "status": 409 });
    let script =
        Script { order: an_order("ready"), finalized: an_order("processing"), replacing: Some(problem) };
    let id = CertificateIdentifier { authority_key_identifier: "AA".into(), serial: "AQ".into() };
    let (fault, asked) = outcome(script, Some(id)).await;
    assert!(matches!(fault, Fault::Late { .. }), "{fault}");
    assert_eq!(asked.iter().filter(|path| *path == "/new-order").count(), 2, "{asked:?}");
}

#[tokio::test]
async fn what_is_no_certificate_is_not_taken() {
    let mut done = an_order("valid");
    done["certificate"] = json!("https://authority.test/certificate");
    let script = Script { order: an_order("ready"), finalized: done, replacing: None };
    let (fault, _) = outcome(script, None).await;
    assert_eq!(fault.to_string(), "the certificate that was issued cannot be used: it holds no certificate");
}

#[tokio::test]
async fn an_authority_that_is_over_its_limits_is_not_asked_a_second_time() {
    let problem =
        json!({ "type": "urn:ietf:params:acme:error:rateLimited", "status": 429, "detail": "too\u{1b}many" });
    let script = Script { order: an_order("ready"), finalized: an_order("valid"), replacing: Some(problem) };
    let id = CertificateIdentifier { authority_key_identifier: "AA".into(), serial: "AQ".into() };
    let (fault, asked) = outcome(script, Some(id)).await;
    assert_eq!(asked.iter().filter(|path| *path == "/new-order").count(), 1, "{asked:?}");
    assert!(fault.to_string().starts_with("cannot place the order: API error: too many"), "{fault}");
}
