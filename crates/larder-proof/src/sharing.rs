//! Two processes share blocks, both ways, and compare the contents.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder::ShareBy;
use larder_core::Allocator;
use larder_core::allocator::share::Shared;
use larder_core::types::{Addr, MIB, StreamId};

use crate::rig::{Explain, Rig, id_of};

const BLOCK_BYTES: u64 = 48 * MIB;
/// The word on the command line that makes this program the other process.
pub(crate) const PARTNER: &str = "share-partner";
const SETTINGS: [&str; 5] = [
    "expandable_segments:False",
    "expandable_segments:True",
    "expandable_segments:True,page_size_mb:2",
    "policy:tight",
    IN_VIEW,
];
/// The policy tight, and the block lies in a view of pages of different sizes.
const IN_VIEW: &str = "tight-view";

/// The first process: it leads.
pub(crate) fn run(rig: &Rig, short: bool) -> Result<String, String> {
    let rounds = if short { 1 } else { 5 };
    let stream = rig.stream()?;
    let mut partner = Partner::start()?;
    let mut passed = 0;
    for settings in SETTINGS {
        for _ in 0..rounds {
            there(rig, &stream, &mut partner, settings).or_say(&format!("there ({settings})"))?;
            back(rig, &stream, &mut partner, settings).or_say(&format!("back ({settings})"))?;
            passed += 2;
        }
    }
    partner.ask("quit")?;
    partner.child.wait().or_say("the other process")?;
    let fabric = match rig.device.try_sharing(ShareBy::Fabric) {
        Ok(()) => "work".to_owned(),
        Err(error) => format!("do not work here ({error})"),
    };
    Ok(format!("{passed} blocks, 0 words wrong; fabric handles {fabric}"))
}

/// A block of this process is read and written by the other one, which outlives its free here.
fn there(
    rig: &Rig,
    stream: &Arc<CudaStream>,
    partner: &mut Partner,
    settings: &str,
) -> Result<(), String> {
    let mut desk = Desk::new(rig, stream, settings)?;
    let (shared, seed) = desk.give()?;
    let wrong = partner.ask(&format!(
        "take {} {} {seed} {settings}",
        hex(&shared.bytes),
        shared.offset_bytes
    ))?;
    expect_zero(&wrong, "the other process reads")?;
    // It has written a pattern of its own since.
    desk.check(seed + 1)?;
    rig.expect_none_wrong("what the other process wrote")?;
    desk.drop_given()?;
    expect_zero(&partner.ask(&format!("check {}", seed + 1))?, "after the free here")?;
    partner.ask("close")?;
    desk.leave()
}

/// A block of the other process is read and written here, and outlives its free there.
fn back(
    rig: &Rig,
    stream: &Arc<CudaStream>,
    partner: &mut Partner,
    settings: &str,
) -> Result<(), String> {
    let gave = partner.ask(&format!("give {settings}"))?;
    let [bytes, offset_bytes, seed] = words(&gave)?;
    let shared =
        Shared { bytes: unhex(bytes)?, offset_bytes: offset_bytes.parse().or_say("an offset")? };
    let seed: u32 = seed.parse().or_say("a seed")?;
    let mut desk = Desk::new(rig, stream, settings)?;
    desk.take(&shared, seed)?;
    rig.expect_none_wrong("what the other process gave")?;
    expect_zero(&partner.ask(&format!("look {}", seed + 1))?, "the giver reads")?;
    partner.ask("drop")?;
    desk.check(seed + 1)?;
    rig.expect_none_wrong("after the free there")?;
    desk.close()?;
    desk.leave()?;
    partner.ask("leave").map(drop)
}

/// The second process: it does what it is asked, a line at a time.
pub(crate) fn partner() -> Result<(), String> {
    let rig = Rig::new()?;
    let stream = rig.stream()?;
    let mut desk: Option<Desk<'_>> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.or_say("standard input")?;
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let before = rig.wrong_words()?;
        let answer = match verb {
            "take" => {
                let mut fields = rest.splitn(4, ' ');
                let mut field = || fields.next().ok_or("a word is missing");
                let (bytes, offset_bytes) = (unhex(field()?)?, field()?.parse().or_say("offset")?);
                let seed: u32 = field()?.parse().or_say("seed")?;
                let new = desk.insert(Desk::new(&rig, &stream, fields.next().unwrap_or(""))?);
                new.take(&Shared { bytes, offset_bytes }, seed)?;
                (rig.wrong_words()? - before).to_string()
            }
            "give" => {
                let (shared, seed) = desk.insert(Desk::new(&rig, &stream, rest)?).give()?;
                format!("{} {} {seed}", hex(&shared.bytes), shared.offset_bytes)
            }
            "check" | "look" => {
                let desk = desk.as_mut().ok_or("nothing is open")?;
                desk.check(rest.parse().or_say("seed")?)?;
                (rig.wrong_words()? - before).to_string()
            }
            "drop" => {
                desk.as_mut().ok_or("nothing was given")?.drop_given().map(|()| "0".into())?
            }
            "close" => {
                let mut open = desk.take().ok_or("nothing is open")?;
                open.close()?;
                open.leave().map(|()| "0".into())?
            }
            "leave" => desk.take().ok_or("nothing was given")?.leave().map(|()| "0".into())?,
            "quit" => {
                println!("0");
                return Ok(());
            }
            verb => return Err(format!("there is no '{verb}'")),
        };
        println!("{answer}");
    }
    Ok(())
}

/// One process's end: an allocator, and the block that it gave or took.
struct Desk<'a> {
    rig: &'a Rig,
    stream: &'a Arc<CudaStream>,
    allocator: Allocator,
    expandable: bool,
    /// What is given lies in a view.
    in_view: bool,
    given: Option<Addr>,
    taken: Option<Addr>,
    at: Addr,
    /// In front of what is given, so that its offset is not zero.
    neighbour: Option<Addr>,
}

impl<'a> Desk<'a> {
    fn new(rig: &'a Rig, stream: &'a Arc<CudaStream>, settings: &str) -> Result<Desk<'a>, String> {
        // Tight has pages always.
        let expandable = settings.contains("expandable") || settings.contains("tight");
        let (settings, in_view) = match settings {
            IN_VIEW => ("policy:tight", true),
            settings => (settings, false),
        };
        let allocator = rig.allocator(settings)?;
        let (given, taken, neighbour, at) = (None, None, None, Addr(0));
        Ok(Desk { rig, stream, allocator, expandable, in_view, given, taken, at, neighbour })
    }

    /// Fills a block and shares it.
    fn give(&mut self) -> Result<(Shared, u32), String> {
        let id = id_of(self.stream);
        let addr = if self.in_view { self.make_view(id)? } else { self.make_at_home(id)? };
        (self.given, self.at) = (Some(addr), addr);
        let seed = self.rig.seed();
        self.rig.fill(self.stream, addr, BLOCK_BYTES, seed)?;
        self.stream.synchronize().or_say("waiting for a stream")?;
        let shared = self.allocator.share(addr).or_say("sharing")?;
        Ok((shared, seed))
    }

    fn make_at_home(&mut self, id: StreamId) -> Result<Addr, String> {
        // A segment of twice the size holds both.
        let whole = self.allocator.malloc(2 * BLOCK_BYTES, id).or_say("a segment")?;
        self.allocator.free(whole).or_say("free")?;
        self.neighbour = Some(self.allocator.malloc(3 * MIB, id).or_say("a block")?);
        self.allocator.malloc(BLOCK_BYTES, id).or_say("a block")
    }

    /// A block in a view of pages of 2 and of 4 MiB: neither have enough in one piece.
    fn make_view(&mut self, id: StreamId) -> Result<Addr, String> {
        let narrow = self.allocator.malloc(26 * MIB, id).or_say("small pages")?;
        let wide = self.allocator.malloc(128 * MIB, id).or_say("larger pages")?;
        self.allocator.free(wide).or_say("free")?;
        self.neighbour = Some(self.allocator.malloc(100 * MIB, id).or_say("a block")?);
        self.allocator.free(narrow).or_say("free")?;
        let addr = self.allocator.malloc(BLOCK_BYTES, id).or_say("a block")?;
        let segments = self.allocator.snapshot();
        if segments.iter().any(|segment| segment.view && segment.span.contains(addr)) {
            return Ok(addr);
        }
        Err(format!("the block at {addr} lies in no view"))
    }

    /// Opens a block, compares it, and writes a new pattern into it.
    fn take(&mut self, shared: &Shared, seed: u32) -> Result<(), String> {
        let base = self.allocator.open_shared(&shared.bytes).or_say("opening")?;
        let again = self.allocator.open_shared(&shared.bytes).or_say("opening again")?;
        if again != base {
            return Err("one handle opened twice is at two places".to_owned());
        }
        self.allocator.close_shared(base).or_say("closing one of two")?;
        (self.taken, self.at) = (Some(base), base.offset(shared.offset_bytes));
        self.rig.verify(self.stream, self.at, BLOCK_BYTES, seed)?;
        self.rig.fill(self.stream, self.at, BLOCK_BYTES, seed + 1)?;
        self.stream.synchronize().or_say("waiting for a stream")
    }

    fn check(&mut self, seed: u32) -> Result<(), String> {
        self.rig.verify(self.stream, self.at, BLOCK_BYTES, seed)?;
        self.stream.synchronize().or_say("waiting for a stream")
    }

    /// Frees what was given. Pages go back to the device; a plain segment stays in the cache, since
    /// CUDA forbids to free it while somebody has it open.
    fn drop_given(&mut self) -> Result<(), String> {
        for addr in self.given.take().into_iter().chain(self.neighbour.take()) {
            self.allocator.free(addr).or_say("free")?;
        }
        if self.expandable {
            self.allocator.empty_cache().or_say("emptying the cache")?;
            let held = self.allocator.stats().reserved_bytes.all.current;
            if held != 0 {
                return Err(format!("{held} bytes are still held"));
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        self.taken.take().map_or(Ok(()), |base| self.allocator.close_shared(base)).or_say("closing")
    }

    fn leave(&mut self) -> Result<(), String> {
        self.drop_given()?;
        self.allocator.empty_cache().or_say("emptying the cache")?;
        self.allocator.check().or_say("a check")
    }
}

/// The other process, as the first one sees it.
struct Partner {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Partner {
    fn start() -> Result<Partner, String> {
        let program = std::env::current_exe().or_say("this program")?;
        let mut child = Command::new(program)
            .arg(PARTNER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .or_say("the other process")?;
        let stdin = child.stdin.take().ok_or("no pipe")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Partner { child, stdin, stdout })
    }

    fn ask(&mut self, line: &str) -> Result<String, String> {
        writeln!(self.stdin, "{line}").or_say("writing to the other process")?;
        self.stdin.flush().or_say("writing to the other process")?;
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).or_say("reading from the other process")?;
        if answer.is_empty() {
            return Err("the other process said nothing; its own words are above".to_owned());
        }
        Ok(answer.trim().to_owned())
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        // It has ended by itself, or nobody will ask it again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn expect_zero(wrong: &str, when: &str) -> Result<(), String> {
    if wrong == "0" { Ok(()) } else { Err(format!("{when}: {wrong} words are wrong")) }
}

fn words(line: &str) -> Result<[&str; 3], String> {
    let words: Vec<&str> = line.split(' ').collect();
    words.try_into().map_err(|_| format!("'{line}' is not what was asked for"))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

pub(crate) fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits =
        |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes = (0..text.len()).step_by(2).map(digits).collect::<Option<_>>();
    bytes.ok_or_else(|| "a handle that is no hexadecimal text".to_owned())
}
