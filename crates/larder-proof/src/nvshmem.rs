//! NVSHMEM's symmetric heap behind a symmetric pool: processes that put into each other's blocks
//! and get from them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use larder::nvshmem::{Nvshmem, NvshmemSource, UniqueId};
use larder_core::allocator::symmetric::SymmetricOptions;
use larder_core::types::{Addr, MIB};
use larder_core::{Allocator, MemPool};
use larder_sim::random::Random;

use crate::rig::{Explain, Rig, id_of};
use crate::sharing::{hex, unhex};

/// The word on the command line that makes this program a processing element.
pub(crate) const ELEMENT: &str = "nvshmem-element";
/// What an element says before its id, and before its result.
const ID: &str = "id ";
const RESULT: &str = "result ";
/// Elements that wait for each other in vain are ended.
const LIMIT: Duration = Duration::from_secs(40);

/// One element, which has to work, and two on the one GPU, which NVSHMEM may refuse.
pub(crate) fn run(short: bool) -> Result<String, String> {
    let alone = elements(1, short)?;
    let both = match elements(2, short) {
        Ok(said) => said,
        Err(sentence) if sentence.contains("words are not what") => return Err(sentence),
        Err(sentence) => format!("refused here ({sentence})"),
    };
    Ok(format!("one element: {alone}; two on one GPU: {both}"))
}

/// Starts so many processes and waits for what the first one says.
fn elements(count: u32, short: bool) -> Result<String, String> {
    let end = Instant::now() + LIMIT;
    let rounds = if short { "2" } else { "20" };
    let mut first = Element::start(0, count, rounds, "")?;
    let id = first.await_line(ID, end)?;
    let others = (1..count).map(|rank| Element::start(rank, count, rounds, &id));
    let mut others = others.collect::<Result<Vec<_>, _>>()?;
    let said = first.await_line(RESULT, end)?;
    for other in &mut others {
        other.await_line(RESULT, end)?;
    }
    Ok(said)
}

/// Another process, and what it says, line by line.
struct Element {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Element {
    fn start(rank: u32, count: u32, rounds: &str, id: &str) -> Result<Element, String> {
        let program = std::env::current_exe().or_say("this program")?;
        let mut child = Command::new(program)
            .args([ELEMENT, &rank.to_string(), &count.to_string(), rounds, id])
            .stdout(Stdio::piped())
            .spawn()
            .or_say("a processing element")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // It ends with the process, or when nobody listens any more.
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Element { child, lines })
    }

    /// The rest of the next line that begins so; what NVSHMEM says in between is passed over.
    fn await_line(&mut self, begin: &str, end: Instant) -> Result<String, String> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line =
                line.map_err(|_| "an element ended or waits for ever; its words are above")?;
            match line.strip_prefix(begin) {
                Some(rest) => return Ok(rest.to_owned()),
                None => eprintln!("{line}"),
            }
        }
    }
}

impl Drop for Element {
    fn drop(&mut self) {
        // It has ended by itself, or nobody listens to it any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One processing element: `rank`, how many there are, how many rounds, and the id unless it is the
/// first.
pub(crate) fn element(words: &[&str]) -> Result<(), String> {
    let [rank, ranks, rounds, id] = words else { return Err("four words are wanted".to_owned()) };
    let number = |text: &str| text.parse::<u32>().or_say(text);
    let (rank, ranks, rounds) = (number(rank)?, number(ranks)?, number(rounds)?);
    let rig = Rig::new()?;
    rig.context().bind_to_thread().or_say("the context")?;
    let nvshmem = Nvshmem::load().or_say("NVSHMEM")?;
    let id = if id.is_empty() {
        let id = nvshmem.unique_id().or_say("an id")?;
        println!("{ID}{}", hex(&id.bytes()));
        id
    } else {
        let bytes = unhex(id)?.try_into().map_err(|_| "an id of another length")?;
        UniqueId::of_bytes(bytes)
    };
    nvshmem.start(&id, rank, ranks).or_say("starting")?;
    let said = Exchange::new(&rig, &nvshmem)?.run(rounds)?;
    // SAFETY: the pool and all its memory are gone.
    unsafe { nvshmem.end() };
    println!("{RESULT}{said}");
    Ok(())
}

/// Blocks that are written by one element and read by another.
struct Exchange<'a> {
    rig: &'a Rig,
    nvshmem: &'a Nvshmem,
    stream: Arc<CudaStream>,
    allocator: Arc<Allocator>,
    pool: MemPool,
}

impl<'a> Exchange<'a> {
    fn new(rig: &'a Rig, nvshmem: &'a Arc<Nvshmem>) -> Result<Exchange<'a>, String> {
        let allocator = Arc::new(rig.allocator("")?);
        let source = NvshmemSource::new(nvshmem, Some(0)).or_say("NVSHMEM's memory")?;
        let options = SymmetricOptions::default().growth_bytes(8 * MIB);
        let pool = MemPool::symmetric(&allocator, Arc::new(source), options);
        let (stream, pool) = (rig.stream()?, pool.or_say("a symmetric pool")?);
        Ok(Exchange { rig, nvshmem, stream, allocator, pool })
    }

    fn run(self, rounds: u32) -> Result<String, String> {
        let mut random = Random::new(9);
        let (mut live, mut count) = (Vec::new(), 0_u32);
        for round in 0..rounds {
            for number in 0..10 {
                let size_bytes = 4 * random.between(1, MIB);
                live.push(self.exchange(size_bytes, round * 10 + number)?);
                count += 1;
                if random.chance(0.5) {
                    let at = random.below(live.len() as u64) as usize;
                    self.free(live.swap_remove(at))?;
                }
            }
            if round % 4 == 3 {
                live.drain(..).try_for_each(|blocks| self.free(blocks))?;
                self.rig.wrong_words()?;
                self.pool.trim().or_say("trimming")?;
            }
        }
        live.drain(..).try_for_each(|blocks| self.free(blocks))?;
        self.rig.expect_none_wrong("what was put and got")?;
        self.pool.trim().or_say("trimming")?;
        let counts = self.pool.source_counts().ok_or("a pool with no source")?;
        self.allocator.check().or_say("a check")?;
        if counts.made != counts.given_back || counts.held_bytes != 0 {
            return Err(format!("segments were lost: {counts:?}"));
        }
        Ok(format!("{count} blocks put and got right, {} segments made and freed", counts.made))
    }

    /// Each element puts into the next one's block, and gets what the next one wrote for itself.
    fn exchange(&self, size_bytes: u64, number: u32) -> Result<[Addr; 3], String> {
        let (rank, ranks) = (self.nvshmem.rank(), self.nvshmem.ranks());
        let (next, last) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let seed = |rank: i32| (number * 64 + rank as u32 + 1).wrapping_mul(0x9e37_79b9);
        let malloc = || {
            let block = self.pool.scope(|| self.allocator.malloc(size_bytes, id_of(&self.stream)));
            block.and_then(|block| block).or_say("a block")
        };
        let [own, put, got] = [malloc()?, malloc()?, malloc()?];
        self.rig.fill(&self.stream, own, size_bytes, seed(rank))?;
        self.stream.synchronize().or_say("waiting for a stream")?;
        self.nvshmem.barrier();
        // SAFETY: all three blocks are symmetric and have so many bytes, and each element writes
        // into one other's.
        unsafe {
            self.nvshmem.put(put, own, size_bytes, next);
            self.nvshmem.get(got, own, size_bytes, next);
        }
        self.nvshmem.barrier();
        self.rig.verify(&self.stream, put, size_bytes, seed(last))?;
        self.rig.verify(&self.stream, got, size_bytes, seed(next))?;
        self.stream.synchronize().or_say("waiting for a stream")?;
        Ok([own, put, got])
    }

    fn free(&self, blocks: [Addr; 3]) -> Result<(), String> {
        blocks.into_iter().try_for_each(|block| self.allocator.free(block).or_say("free"))
    }
}
