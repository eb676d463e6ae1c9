//! Buffers, pools and sharing, as a program meets them, on the simulated GPU.

use std::thread;

use larder::{
    Allocator, Buffer, Error, HistoryOptions, Pool, SimOptions, SnapshotOptions, Stream, Wire,
};
use larder_sim::{CallKind, Fault, FaultPlan};

fn allocator() -> Allocator {
    Allocator::simulated(0).unwrap()
}

fn live(allocator: &Allocator) -> i64 {
    allocator.stats().allocation.all.current
}

#[test]
fn a_buffer_frees_itself_and_comes_again() {
    let allocator = allocator();
    let stream = allocator.new_stream().unwrap();
    let buffer = allocator.alloc::<u64>(100, &stream).unwrap();
    let place = buffer.addr();
    assert_eq!((buffer.len(), buffer.size_bytes(), live(&allocator)), (100, 800, 1));
    drop(buffer);
    assert_eq!(live(&allocator), 0);
    assert_eq!(allocator.alloc::<u64>(100, &stream).unwrap().addr(), place);
}

#[test]
fn an_empty_buffer_is_nowhere() {
    let allocator = allocator();
    let buffer = allocator.alloc_zeros::<f32>(0, allocator.default_stream()).unwrap();
    assert!(buffer.is_empty());
    assert_eq!((buffer.addr(), live(&allocator)), (0, 0));
    buffer.free().unwrap();
}

#[test]
fn more_elements_than_addresses_are_an_error() {
    let allocator = allocator();
    let error = allocator.alloc::<u64>(usize::MAX, allocator.default_stream()).unwrap_err();
    assert_eq!(error, Error::TooLarge { len: usize::MAX, element_bytes: 8 });
}

#[test]
fn a_block_that_leaks_is_freed_by_its_address() {
    let allocator = allocator();
    let block = allocator.alloc_block(1 << 20, allocator.default_stream()).unwrap();
    let place = block.leak();
    assert_eq!(live(&allocator), 1);
    allocator.core().unwrap().free(larder_core::Addr(place)).unwrap();
    assert_eq!(live(&allocator), 0);
}

#[test]
fn a_block_that_somebody_freed_by_address_says_so() {
    let allocator = allocator();
    let block = allocator.alloc_block(1 << 20, allocator.default_stream()).unwrap();
    let place = larder_core::Addr(block.addr());
    allocator.core().unwrap().free(place).unwrap();
    let failed = block.free().unwrap_err();
    assert_eq!(failed.error, Error::Allocator(larder_core::Error::UnknownAddress(place)));
    assert!(failed.unfreed.is_none(), "the bytes are no longer the block's");
    drop(failed);
    assert_eq!(allocator.take_drop_error(), None, "it was said already");

    let block = allocator.alloc_block(1 << 20, allocator.default_stream()).unwrap();
    allocator.core().unwrap().free(place).unwrap();
    drop(block);
    let error = Error::Allocator(larder_core::Error::UnknownAddress(place));
    assert_eq!(allocator.take_drop_error(), Some(error), "dropping cannot say it");
    assert_eq!(allocator.take_drop_error(), None);
}

#[test]
fn a_block_that_cannot_be_freed_comes_back_and_can_be_freed_later() {
    // The device refuses the first event that is asked for.
    let faults = FaultPlan::new(1).fail_nth(CallKind::Record, 1, Fault::Other);
    let options = SimOptions::default().faults(faults);
    let allocator = Allocator::builder().simulated_with(options).unwrap();
    let side = allocator.new_stream().unwrap();
    let buffer = allocator.alloc::<f32>(1000, allocator.default_stream()).unwrap();
    buffer.record_stream(&side).unwrap();
    let place = buffer.addr();
    let failed = buffer.free().unwrap_err();
    assert!(failed.to_string().contains("event"), "{failed}");
    assert_eq!(live(&allocator), 1);
    let buffer = failed.unfreed.unwrap();
    assert_eq!((buffer.addr(), buffer.len()), (place, 1000));
    buffer.free().unwrap();
    assert_eq!((live(&allocator), allocator.take_drop_error()), (0, None));
}

#[test]
fn types_go_where_they_may() {
    fn goes_anywhere<T: Send + Sync>() {}
    goes_anywhere::<Allocator>();
    goes_anywhere::<Buffer<f32>>();
    goes_anywhere::<Stream>();
    goes_anywhere::<Pool>();
    goes_anywhere::<Error>();

    let allocator = allocator();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let stream = allocator.new_stream().unwrap();
                for len in 1..200 {
                    drop(allocator.alloc::<f32>(len * 1000, &stream).unwrap());
                }
            });
        }
    });
    assert_eq!(live(&allocator), 0);
}

#[test]
fn a_buffer_may_outlive_the_handle_it_came_from() {
    let allocator = allocator();
    let buffer = allocator.alloc::<f32>(10, allocator.default_stream()).unwrap();
    drop(allocator);
    assert_eq!(live(buffer.block().allocator()), 1);
}

#[test]
fn a_pool_keeps_what_is_its_own() {
    let allocator = allocator();
    let stream = allocator.new_stream().unwrap();
    let pool = allocator.new_pool().unwrap();
    let apart = pool.within(|| allocator.alloc::<u8>(1 << 20, &stream)).unwrap();
    drop(apart);
    let other = allocator.alloc::<u8>(1 << 20, &stream).unwrap();
    assert_eq!(allocator.snapshot().unwrap().len(), 2, "the pool's free block serves nobody else");
    drop(pool);
    assert_eq!(allocator.snapshot().unwrap().len(), 1);
    drop(other);
}

#[test]
fn a_graph_gets_its_memory_from_its_pool() {
    let allocator = allocator();
    let stream = allocator.new_stream().unwrap();
    let gpu = allocator.simulated_device().unwrap();
    let pool = allocator.new_capture_pool().unwrap();
    let inside = pool.capture(&stream, || {
        gpu.begin_capture(stream.id()).unwrap();
        let inside = allocator.alloc::<u8>(1 << 20, &stream);
        gpu.end_capture(stream.id()).unwrap();
        inside
    });
    assert_eq!(pool.snapshot().len(), 1);
    drop(inside.unwrap());
    let outside = allocator.alloc::<u8>(1 << 20, &stream).unwrap();
    assert_eq!(allocator.snapshot().unwrap().len(), 2);
    drop(outside);
}

#[test]
fn a_block_is_had_where_it_was_and_can_be_remarked_on() {
    let allocator = allocator();
    let stream = allocator.new_stream().unwrap();
    allocator.record_history(HistoryOptions::default()).unwrap();
    let addr = allocator.alloc_block(5000, &stream).unwrap().addr() + 1024;
    let block = allocator.alloc_block_at(2000, &stream, addr).unwrap();
    assert_eq!((block.addr(), block.size_bytes(), live(&allocator)), (addr, 2000, 1));
    block.annotate("the weights").unwrap();
    let error = allocator.alloc_block_at(2000, &stream, addr).unwrap_err();
    assert!(error.to_string().contains("cannot be at 0x"), "{error}");
    drop(block);
    assert_eq!(live(&allocator), 0);
    let trace = allocator.take_snapshot(SnapshotOptions::default()).unwrap().trace;
    assert!(trace.iter().any(|entry| &*entry.user_metadata == "the weights"));
    allocator.alloc_block(0, &stream).unwrap().annotate("nothing").unwrap();
    allocator.set_stream_class(&stream, "serve").unwrap();
}

#[test]
fn a_stream_of_another_gpu_is_refused() {
    let (ours, theirs) = (allocator(), allocator());
    ours.alloc::<f32>(100, ours.default_stream()).unwrap().free().unwrap();
    // The default streams have the same number, and so have the first that each made.
    for (own, foreign) in [
        (ours.default_stream(), theirs.default_stream()),
        (ours.new_stream().unwrap(), theirs.new_stream().unwrap()),
    ] {
        assert_eq!(own.id(), foreign.id());
        assert_ne!(own, foreign);
        let buffer = ours.alloc::<f32>(100, &own).unwrap();
        assert_eq!(ours.alloc::<f32>(100, &foreign).unwrap_err(), Error::ForeignStream);
        assert_eq!(ours.alloc_block(100, &foreign).unwrap_err(), Error::ForeignStream);
        assert_eq!(buffer.record_stream(&foreign).unwrap_err(), Error::ForeignStream);
        assert_eq!(ours.forget_stream(&foreign).unwrap_err(), Error::ForeignStream);
        let pool = ours.new_pool().unwrap();
        let captured = pool.capture(&foreign, || -> Result<(), Error> { panic!("not captured") });
        assert_eq!(captured.unwrap_err(), Error::ForeignStream);
        assert_eq!(pool.mark_capture(&foreign).unwrap_err(), Error::ForeignStream);
        assert_eq!(pool.begin_capture(&foreign).unwrap_err(), Error::ForeignStream);
    }
    assert_eq!(live(&ours), 0);
}

#[test]
fn two_allocators_of_one_gpu_know_its_streams() {
    let ours = allocator();
    let device = ours.simulated_device().unwrap();
    let other = Allocator::builder().simulated_device(device.clone()).unwrap();
    let [stream, theirs] = [&ours, &other].map(|allocator| allocator.new_stream().unwrap());
    assert_ne!(stream, theirs, "they are streams of one GPU");
    other.alloc::<f32>(100, &stream).unwrap();
    ours.alloc::<f32>(100, &theirs).unwrap();
}

#[test]
fn what_one_process_shares_another_opens() {
    let wire = Wire::default();
    for settings in ["", "expandable_segments:True"] {
        let process = || {
            let options = SimOptions::default().wire(wire.clone());
            let builder = Allocator::builder().settings(settings).unwrap();
            builder.simulated_with(options).unwrap()
        };
        let [sender, receiver] = [process(), process()];
        let buffer = sender.alloc::<f32>(1 << 20, sender.default_stream()).unwrap();
        let shared = buffer.share().unwrap();
        let opened = receiver.open::<f32>(&shared, 1 << 20).unwrap();
        let twice = receiver.open::<f32>(&shared, 1 << 20).unwrap();
        assert_eq!(opened.addr(), twice.addr(), "{settings}");
        let span = larder_core::types::Span::new(larder_core::Addr(opened.addr()), 4 << 20);
        let gpu = receiver.simulated_device().unwrap();
        assert!(gpu.is_accessible(span));
        drop(opened);
        assert!(gpu.is_accessible(span), "one of two is still open");
        drop(twice);
        assert!(!gpu.is_accessible(span));
        assert_eq!(receiver.take_drop_error(), None);
    }
}

#[cfg(feature = "cuda")]
#[test]
fn a_missing_driver_is_one_clear_sentence() {
    if larder_cuda::driver::is_present() {
        return;
    }
    let error = Allocator::cuda(0).unwrap_err();
    assert_eq!(error, Error::Cuda(larder::CudaError::NoDriver));
    let sentence = error.to_string();
    assert!(sentence.contains("no CUDA driver") && sentence.contains("simulated"), "{sentence}");
    assert!(!sentence.contains('\n'));
}

#[test]
fn the_drivers_own_pool_is_refused_where_there_is_no_driver() {
    let builder = Allocator::builder().settings("backend:cudaMallocAsync").unwrap();
    assert_eq!(builder.simulated(0).unwrap_err(), Error::AsyncSimulated);
}

#[test]
fn wrong_settings_name_the_setting() {
    let error = Allocator::builder().settings("expandable:True").err().unwrap();
    assert!(error.to_string().contains("'expandable'"), "{error}");
    let error = Allocator::builder().memory_fraction(1.5).simulated(0).unwrap_err();
    assert!(error.to_string().contains("1.5"), "{error}");
}

#[cfg(feature = "snapshot")]
#[test]
fn a_snapshot_has_the_hosts_pinned_memory_beside_the_gpus() {
    let allocator = allocator();
    let written = || {
        let mut text = Vec::new();
        let snapshot = allocator.torch_snapshot(SnapshotOptions::default()).unwrap();
        snapshot.write_json(&mut text).unwrap();
        String::from_utf8(text).unwrap().replace(": ", ":")
    };
    assert!(!written().contains("total_size\":41943040"), "there is none yet");
    let kept = allocator.alloc_pinned::<u8>(40 << 20).unwrap();
    drop(allocator.alloc_pinned::<u8>(30 << 20).unwrap());
    let text = written();
    let (_, host) = text.split_once("host_segments").expect("the host's memory has a key");
    for size_bytes in [40 << 20, 30 << 20] {
        assert!(host.contains(&format!("\"total_size\":{size_bytes}")), "{host}");
    }
    assert!(host.contains("\"active_allocated\"") && host.contains("\"inactive\""), "{host}");
    drop(kept);
}
