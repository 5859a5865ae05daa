//! Entries of access lists as our configuration writes them.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::emitter::Emitter;
use super::model::{Clients, Entry, Said};
use crate::Effect;
use crate::document::quoted;

/// What an entry of a country needs.
const DATABASE: &str = "countries need a database of yours, in the MaxMind DB format; that of Pen is discontinued. \
                        Add `[geoip]` with `database = \"/var/lib/GeoIP/GeoLite2-Country.mmdb\"`";

/// Writes the entries that have a form, and notes the others.
pub(super) fn entries(
    emitter: &mut Emitter,
    entries: &[Said<Entry>],
    comments: &mut Vec<String>,
) -> Vec<String> {
    let mut written = Vec::new();
    for Said { value: Entry { verdict, clients }, place } in entries {
        match network(clients) {
            Ok(network) => {
                written.push(quoted(&format!("{verdict} {network}")));
                // One database is for all countries.
                let is_told = emitter.notes.iter().any(|note| note.text == DATABASE);
                if matches!(clients, Clients::Country(_)) && !is_told {
                    comments.push(emitter.note(Effect::Missing, place, DATABASE));
                }
            }
            Err((effect, why)) => comments.push(emitter.note(effect, place, &why)),
        }
    }
    written
}

/// A network as our configuration writes it.
pub(super) fn network(clients: &Clients) -> Result<String, (Effect, String)> {
    match clients {
        Clients::Ipv4 { address, mask } => {
            let text = format!("{} {}", Ipv4Addr::from_bits(*address), Ipv4Addr::from_bits(*mask));
            if address & !mask != 0 {
                return Err(never(&text));
            }
            let length = mask.leading_ones();
            if mask.count_ones() != length {
                let why =
                    format!("{text}: a mask with gaps has no form here; write the networks that it means");
                return Err((Effect::Missing, why));
            }
            let address = Ipv4Addr::from_bits(*address);
            Ok(if length == 32 { address.to_string() } else { format!("{address}/{length}") })
        }
        Clients::Ipv6 { address, length } => {
            let shown = Ipv6Addr::from_bits(*address);
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            if address & !mask != 0 {
                return Err(never(&format!("{shown}/{length}")));
            }
            Ok(if *length == 128 { shown.to_string() } else { format!("{shown}/{length}") })
        }
        Clients::Country(country) => {
            // Pen keeps two letters.
            match country.get(..2).filter(|code| code.bytes().all(|byte| byte.is_ascii_uppercase())) {
                Some(code) => Ok(format!("country:{code}")),
                None => {
                    let why = format!(
                        "{country:?} is the code of no country, and matches no client in Pen: left out"
                    );
                    Err((Effect::Changed, why))
                }
            }
        }
    }
}

/// Pen does not apply the mask to the address of an entry.
fn never(text: &str) -> (Effect, String) {
    let why =
        format!("{text} matches no client in Pen, because the address has bits beyond the mask: left out");
    (Effect::Changed, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_the_form_of_our_configuration() {
        let v4 = |address: [u8; 4], mask: [u8; 4]| Clients::Ipv4 {
            address: u32::from_be_bytes(address),
            mask: u32::from_be_bytes(mask),
        };
        for (clients, written) in [
            (v4([10, 0, 0, 0], [255, 0, 0, 0]), Ok("10.0.0.0/8")),
            (v4([10, 0, 0, 1], [255; 4]), Ok("10.0.0.1")),
            (v4([0; 4], [0; 4]), Ok("0.0.0.0/0")),
            (v4([10, 0, 0, 1], [255, 0, 0, 0]), Err(Effect::Changed)),
            (v4([10, 0, 0, 0], [255, 0, 255, 0]), Err(Effect::Missing)),
            (Clients::Ipv6 { address: 0xfd00 << 112, length: 8 }, Ok("fd00::/8")),
            (Clients::Ipv6 { address: 0, length: 0 }, Ok("::/0")),
            (Clients::Ipv6 { address: 1, length: 128 }, Ok("::1")),
            (Clients::Ipv6 { address: 1, length: 64 }, Err(Effect::Changed)),
            (Clients::Country("SE".to_owned()), Ok("country:SE")),
            (Clients::Country("SExy".to_owned()), Ok("country:SE")),
            (Clients::Country("se".to_owned()), Err(Effect::Changed)),
            (Clients::Country("S".to_owned()), Err(Effect::Changed)),
        ] {
            let got = network(&clients).map_err(|(effect, _)| effect);
            assert_eq!(got.as_deref(), written.as_ref().copied(), "{clients:?}");
        }
    }
}
