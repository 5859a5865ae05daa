//! QR codes of blocks, two rows to a line.

use qrcodegen::{QrCode, QrCodeEcc};

/// Light modules around a code.
const BORDER: i32 = 2;

/// The QR code of a text, dark on light on a terminal of any colours; `None` if the text is too long for one.
pub(super) fn draw(text: &str) -> Option<String> {
    let code = QrCode::encode_text(text, QrCodeEcc::Low).ok()?;
    let mut out = String::new();
    for y in (-BORDER..code.size() + BORDER).step_by(2) {
        out.push_str("\u{1b}[30;47m");
        for x in -BORDER..code.size() + BORDER {
            out.push(match (code.get_module(x, y), code.get_module(x, y + 1)) {
                (true, true) => '█',
                (true, false) => '▀',
                (false, true) => '▄',
                (false, false) => ' ',
            });
        }
        out.push_str("\u{1b}[0m\n");
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_its_border_and_its_corner() {
        let lines: Vec<String> = draw("otpauth://totp/x").unwrap().lines().map(str::to_owned).collect();
        assert!(lines[0].starts_with("\u{1b}[30;47m    "), "{}", lines[0]);
        assert!(lines[1].contains("█▀▀▀▀▀█"), "{}", lines[1]);
        assert!(draw(&"x".repeat(4000)).is_none());
    }
}
