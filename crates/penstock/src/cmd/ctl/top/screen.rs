//! The terminal of `penstock ctl top`: keys in, lines out. Dropping the screen gives the terminal back as it was.

use std::io::{self, Write, stdout};
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue};

use super::draw::{Line, Look};
use super::state::{Key, Size};

/// Size of a terminal that does not tell its size.
const USUAL: Size = Size { width: 80, height: 24 };

pub(super) struct Screen {
    size: Size,
}

/// The size of the terminal, if there is one that tells it.
pub(super) fn size() -> Option<Size> {
    let (width, height) = terminal::size().ok()?;
    (width > 0 && height > 0).then(|| Size { width: width.into(), height: height.into() })
}

impl Screen {
    pub(super) fn enter() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        // From here on every way out gives the terminal back.
        let screen = Self { size: size().unwrap_or(USUAL) };
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// Waits for a key, at most for `limit`. A new size is a key too.
    pub(super) fn key(&mut self, limit: Duration) -> io::Result<Option<Key>> {
        if !event::poll(limit)? {
            return Ok(None);
        }
        Ok(match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => key_of(key),
            Event::Resize(width, height) => {
                self.size = Size { width: width.into(), height: height.into() };
                Some(Key::Resized)
            }
            _ => None,
        })
    }

    pub(super) fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        let mut out = stdout().lock();
        for (row, line) in lines.iter().take(self.size.height).enumerate() {
            let row = u16::try_from(row).unwrap_or(u16::MAX);
            queue!(out, MoveTo(0, row), Clear(ClearType::CurrentLine))?;
            match line.look {
                Look::Plain => {}
                Look::Title => queue!(out, SetAttribute(Attribute::Bold))?,
                Look::Selected => queue!(out, SetAttribute(Attribute::Reverse))?,
            }
            queue!(out, Print(&line.text), SetAttribute(Attribute::Reset))?;
        }
        if let Ok(last) = u16::try_from(lines.len())
            && lines.len() < self.size.height
        {
            queue!(out, MoveTo(0, last), Clear(ClearType::FromCursorDown))?;
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = execute!(stdout(), Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

fn key_of(key: KeyEvent) -> Option<Key> {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if is_control => Key::Interrupt,
        KeyCode::Char(c) if !is_control => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Tab | KeyCode::BackTab => Key::Tab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}
