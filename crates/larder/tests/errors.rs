//! Every error is told apart, and every option chosen, with nothing but the crate `larder`.

use larder::{
    Addr, Allocator, AllocatorError, CaptureProblem, Config, ConfigError, CudaError, CudaOptions,
    DeviceError, DeviceIndex, Error, FreeError, HistoryOptions, Level, OutOfMemory, PoolId,
    PoolProblem, ProcessMemory, RustStack, ShareBy, ShareProblem, SimOptions, SnapshotOptions,
    StreamId,
};

/// What a program that looks into every error would do; each binding has its type written out.
fn sort_of(error: &Error) -> &'static str {
    match error {
        Error::Allocator(error) => sort_of_allocator(error),
        Error::Cuda(CudaError::NoDriver) => "no driver",
        Error::Cuda(CudaError::NoDevice { index: _, count: _ }) => "no GPU",
        Error::Cuda(CudaError::Driver { call: _, error }) | Error::Driver(error) => {
            sort_of_device(error)
        }
        Error::ForeignStream => "foreign stream",
        Error::TooLarge { len: _, element_bytes: _ } => "too large",
        _ => "something else",
    }
}

fn sort_of_allocator(error: &AllocatorError) -> &'static str {
    match error {
        AllocatorError::OutOfMemory(report) => {
            let report: &OutOfMemory = report;
            let _: (DeviceIndex, &[ProcessMemory]) = (report.device, &report.processes);
            "out of memory"
        }
        AllocatorError::UnknownAddress(Addr(_)) => "unknown address",
        AllocatorError::Device { call: _, error } => sort_of_device(error),
        AllocatorError::Config(ConfigError::UnknownKey { key: _ }) => "unknown setting",
        AllocatorError::Pool { pool: PoolId(..), problem: PoolProblem::Released } => "released",
        AllocatorError::BadShare(ShareProblem::Length(_)) => "bad bytes",
        AllocatorError::Capture { stream: StreamId(_), problem: CaptureProblem::Default } => {
            "the default stream"
        }
        _ => "something else",
    }
}

fn sort_of_device(error: &DeviceError) -> &'static str {
    match error {
        DeviceError::OutOfMemory => "the device's memory",
        DeviceError::NotSupported => "not supported",
        DeviceError::Other { code: _, text: _ } => "the device",
        _ => "something else",
    }
}

fn small() -> Allocator {
    let options = SimOptions::default().index(0).memory_bytes(64 << 20).peers(false);
    Allocator::builder().simulated_with(options).unwrap()
}

#[test]
fn errors_are_told_apart() {
    let allocator = small();
    let stream = allocator.default_stream();
    let too_much = allocator.alloc::<u8>(100 << 20, &stream).unwrap_err();
    assert_eq!(sort_of(&too_much), "out of memory");
    assert_eq!(sort_of(&allocator.configure("frob:1").unwrap_err()), "unknown setting");
    assert_eq!(sort_of(&allocator.forget_stream(&stream).unwrap_err()), "the default stream");
    let block = allocator.alloc_block(1 << 20, &stream).unwrap();
    let mut shared = block.share().unwrap();
    shared.bytes.truncate(5);
    assert_eq!(sort_of(&allocator.open::<u8>(&shared, 1).unwrap_err()), "bad bytes");
    let foreign = small().default_stream();
    assert_eq!(sort_of(&allocator.alloc::<u8>(1, foreign).unwrap_err()), "foreign stream");
}

#[test]
fn an_error_reads_as_one_sentence_and_is_an_error() {
    let error: Box<dyn std::error::Error> = Box::new(Error::ForeignStream);
    assert_eq!(error.to_string(), "the stream is not one of the GPU that the allocator is for");
    let error = Error::Cuda(CudaError::NoDevice { index: 3, count: 1 });
    assert_eq!(error.to_string(), "there is no GPU 3 on this machine: the driver knows 1");
    let error = Error::from(AllocatorError::NoContextHook);
    assert_eq!(error.to_string(), AllocatorError::NoContextHook.to_string());
}

#[test]
fn options_are_set_one_after_the_other() {
    let allocator = small();
    let options = HistoryOptions::default().level(Level::Alloc).max_entries(3).clear(true);
    allocator.record_history(options.context_hook(RustStack::hook())).unwrap();
    let block = allocator.alloc_block(1 << 20, allocator.default_stream()).unwrap();
    match block.free() {
        Ok(()) => {}
        Err(FreeError { error, .. }) => panic!("{error}"),
    }
    let options = SnapshotOptions::default().traces(true).pool(None);
    let snapshot = allocator.take_snapshot(options).unwrap();
    assert_eq!(snapshot.trace.len(), 3);
    let mut config = Config::default();
    config.expandable_segments = true;
    assert!(Allocator::builder().config(config).simulated(0).unwrap().config().expandable_segments);
    let options = CudaOptions::default().late_context(true).share_by(ShareBy::Nothing);
    assert_eq!((options.late_context, options.share_by), (true, ShareBy::Nothing));
}
