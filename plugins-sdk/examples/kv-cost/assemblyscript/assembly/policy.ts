/* Dynamo's cost: the blocks in front of the first token, times a scale, and the blocks
 * that the worker would hold with this request. Blocks that are in the worker's cache
 * need no computing and are held already. */
import { RouterRequest } from "@yardmaster/policy/assembly";
import { params, table } from "./policy.gen";

export function score(r: RouterRequest, n: i32): bool {
  const scale = <f32>params.scale;
  const each = <f32>params.requestBlocks;
  const prompt = <f32>r.prompt;
  const blocks = <f32>1 / (r.blockTokens > 0 ? <f32>r.blockTokens : <f32>16);
  for (let i = 0; i < n; i++) {
    const missing = prompt - table.hitTokens[i];
    const ahead = table.queuedTokens[i] + missing;
    const compute = (ahead < 0 ? <f32>0 : ahead) * blocks;
    const hold = table.activeBlocks[i] + missing * blocks;
    table.score[i] = scale * compute + hold + each * table.requests[i];
  }
  return true;
}
