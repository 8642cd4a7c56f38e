/* Dynamo's cost: the blocks in front of the first token, times a scale, and the blocks
 * that the worker would hold with this request. Blocks that are in the worker's cache
 * need no computing and are held already. Four workers at a time: what is computed
 * behind the last one is the policy's own. */
import { RouterRequest } from "@yardmaster/policy/assembly";
import { params, table } from "./policy.gen";

export function score(r: RouterRequest, n: i32): bool {
  const scale = f32x4.splat(<f32>params.scale);
  const each = f32x4.splat(<f32>params.requestBlocks);
  const prompt = f32x4.splat(<f32>r.prompt);
  const blocks = f32x4.splat(<f32>1 / (r.blockTokens > 0 ? <f32>r.blockTokens : <f32>16));
  const zero = f32x4.splat(0);
  for (let i = 0; i < n; i += 4) {
    const missing = f32x4.sub(prompt, table.hitTokens.lanes(i));
    const ahead = f32x4.add(table.queuedTokens.lanes(i), missing);
    const compute = f32x4.mul(v128.bitselect(zero, ahead, f32x4.lt(ahead, zero)), blocks);
    const hold = f32x4.add(table.activeBlocks.lanes(i), f32x4.mul(missing, blocks));
    const requests = f32x4.mul(each, table.requests.lanes(i));
    table.score.setLanes(i, f32x4.add(f32x4.add(f32x4.mul(scale, compute), hold), requests));
  }
  return true;
}
