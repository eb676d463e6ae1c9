//! Sharing between simulated processes, and peers.

use std::collections::HashMap;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_core::device::{DeviceError, HANDLE_BYTES, SharedPage};
use larder_core::types::{Addr, DeviceIndex, PageHandle};

use crate::memory::{Memory, invalid};

/// The driver's code for memory that is open here already, or is this process's own.
const ALREADY_MAPPED: i32 = 208;
/// The driver's code for a device that cannot be reached.
const PEER_UNSUPPORTED: i32 = 217;
/// The first descriptor that is handed out; those below belong to somebody.
const DESCRIPTOR_FIRST: i32 = 100;

/// Where simulated processes find what others share. Clones are the same wire.
#[derive(Clone, Debug, Default)]
pub struct Wire(Arc<Mutex<Table>>);

impl Wire {
    /// Every change of the table is made whole by a function that does not panic midway.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Table {
    processes: u64,
    allocs: HashMap<u64, SharedAlloc>,
    alloc_next: u64,
    pages: HashMap<i32, PageShare>,
    descriptors: i32,
}

#[derive(Clone, Copy, Debug)]
struct SharedAlloc {
    process: u64,
    addr: Addr,
    size_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct PageShare {
    process: u64,
    page: PageHandle,
    size_bytes: u64,
}

/// One process's end of the wire.
#[derive(Debug)]
pub(crate) struct Sharing {
    wire: Wire,
    process: u64,
    /// Allocations of others that are open here: their address here, and their number.
    opened: HashMap<Addr, u64>,
    index: DeviceIndex,
    reachable: bool,
    peers: Vec<DeviceIndex>,
}

impl Sharing {
    pub(crate) fn new(wire: Wire, index: DeviceIndex, reachable: bool) -> Sharing {
        let mut table = wire.table();
        table.processes += 1;
        let process = table.processes;
        drop(table);
        Sharing { wire, process, opened: HashMap::new(), index, reachable, peers: Vec::new() }
    }

    pub(crate) fn export_alloc(
        &mut self,
        memory: &Memory,
        addr: Addr,
    ) -> Result<[u8; HANDLE_BYTES], DeviceError> {
        let size_bytes = memory.plain_bytes(addr)?;
        let mut table = self.wire.table();
        let known = table.number_of(self.process, addr);
        let number = known.unwrap_or_else(|| {
            table.alloc_next += 1;
            let number = table.alloc_next;
            table.allocs.insert(number, SharedAlloc { process: self.process, addr, size_bytes });
            number
        });
        let mut handle = [0x5a; HANDLE_BYTES];
        handle[..8].copy_from_slice(&number.to_le_bytes());
        Ok(handle)
    }

    /// The plain allocation is gone; nobody can open it any more.
    pub(crate) fn forget_alloc(&mut self, addr: Addr) {
        let mut table = self.wire.table();
        if let Some(number) = table.number_of(self.process, addr) {
            table.allocs.remove(&number);
        }
    }

    pub(crate) fn import_alloc(
        &mut self,
        memory: &mut Memory,
        handle: [u8; HANDLE_BYTES],
    ) -> Result<Addr, DeviceError> {
        let (number, padding) = handle.split_at(8);
        let number = number.try_into().map_or(0, u64::from_le_bytes);
        let shared = self.wire.table().allocs.get(&number).copied();
        let shared = shared.filter(|_| padding.iter().all(|&byte| byte == 0x5a));
        let shared = shared.ok_or_else(|| invalid("the handle names no allocation"))?;
        if shared.process == self.process || self.opened.values().any(|&open| open == number) {
            let text = String::from("the allocation is this process's own, or is open already");
            return Err(DeviceError::Other { code: ALREADY_MAPPED, text });
        }
        let addr = memory.open(shared.size_bytes)?;
        self.opened.insert(addr, number);
        Ok(addr)
    }

    pub(crate) fn close_alloc(
        &mut self,
        memory: &mut Memory,
        addr: Addr,
    ) -> Result<(), DeviceError> {
        memory.close(addr)?;
        self.opened.remove(&addr);
        Ok(())
    }

    pub(crate) fn export_page(
        &mut self,
        memory: &Memory,
        page: PageHandle,
    ) -> Result<SharedPage, DeviceError> {
        let size_bytes = memory.page_bytes(page)?;
        let mut table = self.wire.table();
        let descriptor = DESCRIPTOR_FIRST + table.descriptors;
        table.descriptors += 1;
        table.pages.insert(descriptor, PageShare { process: self.process, page, size_bytes });
        Ok(SharedPage::Descriptor(descriptor))
    }

    pub(crate) fn unexport_page(&mut self, shared: SharedPage) -> Result<(), DeviceError> {
        let mut table = self.wire.table();
        let descriptor = table.descriptor_of(shared)?;
        table.pages.remove(&descriptor);
        Ok(())
    }

    pub(crate) fn import_page(
        &mut self,
        memory: &mut Memory,
        shared: SharedPage,
        pid: u32,
        size_bytes: u64,
    ) -> Result<PageHandle, DeviceError> {
        let table = self.wire.table();
        let share = table.pages[&table.descriptor_of(shared)?];
        drop(table);
        if pid != process::id() || size_bytes != share.size_bytes {
            let text = format!("process {pid} shares no page of {size_bytes} bytes so");
            return Err(invalid(text));
        }
        if share.process == self.process {
            memory.open_page(share.page)
        } else {
            Ok(memory.open_foreign_page(size_bytes))
        }
    }

    pub(crate) fn open_to_peer(&mut self, peer: DeviceIndex) -> Result<(), DeviceError> {
        if !self.reachable || peer == self.index {
            let text = format!("{peer} cannot reach the memory of {}", self.index);
            return Err(DeviceError::Other { code: PEER_UNSUPPORTED, text });
        }
        if !self.is_peer(peer) {
            self.peers.push(peer);
        }
        Ok(())
    }

    pub(crate) fn is_peer(&self, peer: DeviceIndex) -> bool {
        self.peers.contains(&peer)
    }

    pub(crate) fn check_peer(&self, peer: DeviceIndex) -> Result<(), DeviceError> {
        let problem = || invalid(format!("the memory was not opened to {peer}"));
        if self.is_peer(peer) { Ok(()) } else { Err(problem()) }
    }
}

impl Table {
    fn number_of(&self, process: u64, addr: Addr) -> Option<u64> {
        let mut allocs = self.allocs.iter();
        let found = allocs.find(|(_, shared)| shared.process == process && shared.addr == addr);
        found.map(|(&number, _)| number)
    }

    fn descriptor_of(&self, shared: SharedPage) -> Result<i32, DeviceError> {
        match shared {
            SharedPage::Descriptor(descriptor) if self.pages.contains_key(&descriptor) => {
                Ok(descriptor)
            }
            SharedPage::Descriptor(descriptor) => {
                Err(invalid(format!("descriptor {descriptor} names no page")))
            }
            SharedPage::Fabric(_) => Err(DeviceError::NotSupported),
        }
    }
}
