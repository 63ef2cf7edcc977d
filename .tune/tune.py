import sys, pathlib, numpy as np, cupy as cp, cv2, json
from functools import lru_cache
from framefuse.kernels import cuda
from framefuse.kernels.geometry import warp_affine
from framefuse.kernels.colour import yuv_to_rgb
from framefuse.frame import Frame, PIXEL_FORMATS
base=dict(cuda.descriptions())
stream=cp.cuda.Stream(non_blocking=True)
rng=np.random.default_rng(0)
rgb=cv2.GaussianBlur(rng.integers(0,256,(1080,1920,3),dtype=np.uint8),(0,0),1)
M=cv2.getRotationMatrix2D((960,540),7.0,0.9)
def timed(calls):
    with stream:
        for c in calls: c()
        stream.synchronize()
        stream.begin_capture()
        for c in calls: c()
        g=stream.end_capture()
        for _ in range(5): g.launch(stream)
        ts=[]
        for _ in range(25):
            a,b=cp.cuda.Event(),cp.cuda.Event()
            a.record(stream); g.launch(stream); b.record(stream); b.synchronize()
            ts.append(cp.cuda.get_elapsed_time(a,b)*1e3/len(calls))
    return float(np.median(ts))
def ringed(n): return 16 if n==1 else 4
data={}
for b in (1,8):
    data['w',b]=[(cp.asarray(np.stack([rgb]*b)),cp.zeros((b,1080,1920,3),cp.uint8)) for _ in range(ringed(b))]
    st=[cp.asarray(rng.integers(16,235,(b,1620,1920),dtype=np.uint8)) for _ in range(ringed(b)//2)]
    def fr(s): return Frame(planes=(s[:1080],s[1080:].reshape(540,960,2)),format=PIXEL_FORMATS['nv12'],width=1920,height=1080) 
    data['y',b]=[([frame(s) for s in stack],cp.zeros((b,3,1080,1920),cp.float32)) for frame in [lambda s: __import__('benchmarks.kernels_gpu_after',fromlist=['frame_of']).frame_of((s[:1080],s[1080:].reshape(540,960,2)),'nv12')] for stack in st]
from benchmarks.kernels_gpu_after import frame_of
ref=warp_affine(rgb,M); print('cpu ok')
yref={}
import benchmarks
def run(name):
    out=[]
    for b in (1,8):
        if name.startswith('warp'):
            calls=[lambda i=i,o=o: warp_affine(i,M,o) for i,o in data['w',b]]
            t=timed(calls); err=int((cp.asnumpy(data['w',b][-1][1][-1])!=ref).sum())
        else:
            calls=[lambda f=f,o=o: yuv_to_rgb(f,o,layout='CHW',scale=1/255) for f,o in data['y',b]]
            t=timed(calls)
            if b not in yref: 
                f=data['y',b][-1][0][-1]; h=frame_of(tuple(cp.asnumpy(p) for p in f.planes),'nv12')
                yref[b]=yuv_to_rgb(h,np.empty((3,1080,1920),np.float32),layout='CHW',scale=1/255)
            err=float(abs(cp.asnumpy(data['y',b][-1][1][-1])-yref[b]).max())
        out.append((round(t,2),err))
    print(f'{name:24s}',out,flush=True)
for name in sys.argv[2:]:
    d=pathlib.Path(sys.argv[1])/name
    cuda.descriptions().clear(); cuda.descriptions().update(base); cuda.descriptions().update(cuda._read(d)); cuda._kernels.clear()
    try: run(name)
    except Exception as e: print(name,'FAILED',repr(e)[:300])
