//! The ACME account of this process: registered once with an authority, then read from a file.

use std::io;
use std::path::{Path, PathBuf};

use base64ct::{Base64UrlUnpadded, Encoding};
use config::types::{Acme, ExternalAccount};
use instant_acme::{Account, AccountCredentials, ExternalAccountKey, NewAccount};
use serde::{Deserialize, Serialize};
use sys::file;

use super::client::Client;
use super::fault::Fault;
use super::kept::{lock_file, on_disk, write};

/// Largest accepted size of an account file or account key file, in bytes.
const LARGEST: u64 = 64 * 1024;

/// Contents of the account file.
#[derive(Serialize, Deserialize)]
struct Kept {
    contacts: Vec<String>,
    credentials: AccountCredentials,
}

/// Reads the account of a section, or registers one. `None` while another process registers it.
pub(super) async fn open(settings: &Acme, client: Client) -> Result<Option<Account>, Fault> {
    let path = path(settings);
    let (of_lock, of_file) = (settings.state.join("account.lock"), path.clone());
    let Some(_lock) = on_disk(move || lock_file(&of_lock)).await? else { return Ok(None) };
    let Some(mut kept) = on_disk(move || read(&of_file)).await? else {
        return register(settings, client, &path).await.map(Some);
    };
    let again = serde_json::to_value(&kept.credentials);
    let fault = |doing| move |source| Fault::Authority { doing, source };
    let builder = Account::builder_with_http(Box::new(client));
    let account = match builder.from_credentials(kept.credentials).await {
        Ok(account) => account,
        Err(instant_acme::Error::KeyRejected | instant_acme::Error::Crypto) => {
            return Err(Fault::Account { path, why: "its key is none".to_owned() });
        }
        Err(source) => return Err(fault("read the directory of the authority")(source)),
    };
    if kept.contacts != settings.contacts {
        let contacts: Vec<&str> = settings.contacts.iter().map(String::as_str).collect();
        account.update_contacts(&contacts).await.map_err(fault("change the contacts of the account"))?;
        kept.contacts.clone_from(&settings.contacts);
        let text = serde_json::to_string_pretty(&serde_json::json!({
            "contacts": kept.contacts,
            "credentials": again.map_err(|error| Fault::Crypto(error.to_string()))?,
        }));
        let text = text.map_err(|error| Fault::Crypto(error.to_string()))?;
        on_disk(move || write(&path, text.as_bytes())).await?;
    }
    Ok(Some(account))
}

async fn register(settings: &Acme, client: Client, path: &Path) -> Result<Account, Fault> {
    // Test the directory first: if the key could not be saved, every start would register one more account.
    let probe = path.with_extension("probe");
    on_disk(move || {
        write(&probe, &[b'x'; 4096])?;
        std::fs::remove_file(&probe).map_err(|source| Fault::File { path: probe, what: "written", source })
    })
    .await?;
    let external = match settings.external_account.clone() {
        Some(account) => Some(on_disk(move || external_key(&account)).await?),
        None => None,
    };
    let contacts: Vec<&str> = settings.contacts.iter().map(String::as_str).collect();
    let wanted =
        NewAccount { contact: &contacts, terms_of_service_agreed: true, only_return_existing: false };
    let directory = settings.directory.to_string();
    let (account, credentials) = Account::builder_with_http(Box::new(client))
        .create(&wanted, directory, external.as_ref())
        .await
        .map_err(|source| Fault::Authority { doing: "register an account", source })?;
    let kept = Kept { contacts: settings.contacts.clone(), credentials };
    let text = serde_json::to_string_pretty(&kept).map_err(|error| Fault::Crypto(error.to_string()))?;
    let path = path.to_owned();
    on_disk(move || write(&path, text.as_bytes())).await?;
    Ok(account)
}

/// Path of the account file: it contains the authority's host name and a hash of the directory URL.
fn path(settings: &Acme) -> PathBuf {
    let url = &settings.directory;
    let host = url.trim_start_matches("https://").split('/').next().unwrap_or_default();
    let host: String = host
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() || char == '.' { char } else { '-' })
        .collect();
    let hash = logic::balance::hash_bytes(0, url.as_bytes()) as u32;
    settings.state.join(format!("account-{host}-{hash:08x}.json"))
}

fn read(path: &Path) -> Result<Option<Kept>, Fault> {
    let text = match file::read(path, LARGEST) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Fault::File { path: path.to_owned(), what: "read", source }),
    };
    let damaged = |why: String| Fault::Account { path: path.to_owned(), why };
    serde_json::from_slice(&text).map(Some).map_err(|error| damaged(error.to_string()))
}

fn external_key(account: &ExternalAccount) -> Result<ExternalAccountKey, Fault> {
    let path = &account.key_file;
    let text = file::read_secret(path, LARGEST).map_err(|source| Fault::File {
        path: path.clone(),
        what: "read",
        source,
    })?;
    let key = str::from_utf8(text.trim_ascii()).ok().and_then(decode_base64url).filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| Fault::Setting {
        key: "external-account.key-file",
        why: format!("{}: holds no key in base64url", path.display()),
    })?;
    Ok(ExternalAccountKey::new(account.id.clone(), &key))
}

/// Decodes RFC 4648 section 5, with or without padding. Some authorities use the alphabet of section 4.
fn decode_base64url(text: &str) -> Option<Vec<u8>> {
    let text = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    Base64UrlUnpadded::decode_vec(&text.replace('+', "-").replace('/', "_")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_in_both_alphabets_with_and_without_padding() {
        for text in ["-_8AAQ", "+/8AAQ==", "-_8AAQ=="] {
            assert_eq!(decode_base64url(text).unwrap(), [0xfb, 0xff, 0, 1], "{text}");
        }
        assert_eq!(decode_base64url("AAEC").unwrap(), [0, 1, 2]);
        for bad in ["A", "AAAAA", "A A=", "%%%%"] {
            assert!(decode_base64url(bad).is_none(), "{bad}");
        }
    }
}
